"""What a person types: arguments are parsed and parts wired together here, and nothing is computed."""
