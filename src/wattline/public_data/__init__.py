"""Public data of other papers: where it is, how it is checked, and where it is kept."""
