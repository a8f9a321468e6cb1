"""How well annotators judge, from what they did."""
