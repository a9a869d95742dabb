"""Why a prompt token was or was not found."""
