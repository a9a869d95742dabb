"""Events and statistics in the forms that routers and monitoring expect."""
