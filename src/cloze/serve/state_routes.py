"""How the service is: alive, ready, what it serves, and its figures."""

from dataclasses import asdict

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from cloze import __version__
from cloze.serve.answers import json_response
from cloze.serve.service import Service

router = APIRouter(tags=["state"])


@router.get("/health", summary="Whether the process lives; needs no key.")
async def health() -> Response:
    """Liveness."""
    return json_response({"status": "ok"})


@router.get("/ready", summary="Whether every model has computed something lately.")
async def ready(request: Request) -> Response:
    """Readiness: what a balancer asks before it sends somebody here."""
    service: Service = request.app.state.service
    is_ready = service.library.ready and not service.draining
    response = json_response({"ready": is_ready, "draining": service.draining})
    response.status_code = 200 if is_ready else 503
    return response


@router.get("/info", summary="Models, their heads and labels, and the limits.")
async def info(request: Request) -> Response:
    """What there is."""
    service: Service = request.app.state.service
    models = [
        {"name": one.name, "base": one.base, "adapter": one.adapter, "does": sorted(one.abilities), **one.description}
        for one in service.library.served.values()
    ]
    return json_response({"version": __version__, "models": models, "limits": asdict(service.settings.limits)})


@router.get("/metrics", summary="Figures for Prometheus.")
async def metrics(request: Request) -> Response:
    """Requests, reading, waiting, computing; memory and descriptors."""
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
