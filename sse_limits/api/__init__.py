"""The DRF API. Mount it with `path("api/", include("sse_limits.api.urls"))`."""
