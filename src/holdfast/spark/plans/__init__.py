"""Plans of Catalyst's: what is done to the expressions and nodes that an operator has added to one."""
