"""The demo project. Every scalar key of SSE_LIMITS also comes from the environment, as SSE_LIMITS_<KEY>."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = os.environ.get("SECRET_KEY", "demo-only-not-a-secret-" + "0" * 32)
DEBUG = os.environ.get("DEBUG", "1") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]

INSTALLED_APPS = [
    "sse_limits",
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "django_eventstream",
    "drf_spectacular",
    "project",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "project.middleware.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"
WSGI_APPLICATION = "project.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE_PATH", str(BASE_DIR / "db.sqlite3")),
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 10,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"

REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}
SPECTACULAR_SETTINGS = {
    "TITLE": "sse_limits",
    "DESCRIPTION": "Who holds streams, why others were rejected; publish events; end streams.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "sse_limits": {"handlers": ["console"], "propagate": False, "level": os.environ.get("LOG_LEVEL", "INFO")}
    },
}

SSE_LIMITS: dict[str, Any] = {}


TEXTS = ("REDIS_URL", "STORE", "NODE_NAME", "TENANT_RESOLVER", "DEFAULT_TIER", "ANONYMOUS_TIER")


def _from_environment() -> dict[str, Any]:
    """Read SSE_LIMITS_<KEY> by the type of the key's default: numbers, true/false, comma-separated lists, text."""
    prefix = "SSE_LIMITS_"
    found: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if variable.startswith(prefix) and text != "":
            found[variable.removeprefix(prefix)] = _parse(variable.removeprefix(prefix), text)
    return found


def _parse(key: str, text: str) -> object:
    if key in ("TRUSTED_PROXIES", "ALLOWED_ORIGINS", "CORS_ORIGINS"):
        return [item.strip() for item in text.split(",") if item.strip()]
    if key in TEXTS:
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


SSE_LIMITS |= _from_environment()
