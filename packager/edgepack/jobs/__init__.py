"""Jobs: commands on devices that a team's workers do, in its database."""
