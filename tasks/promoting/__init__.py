"""What a policy has to show before it goes into production, and the cards that describe models."""
