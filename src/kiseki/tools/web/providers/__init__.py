"""Search providers, one file each: `async def search(session, key, query, limit) -> list[Hit]`."""
