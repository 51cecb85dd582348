"""A world whose applications are HTTP services behind gateways.

Clients send requests to a gateway, and gateways forward to each other. What is lost on the way, and which services stop
between doing and answering, is drawn from the seed. The network of messages, the disks and the crashes are those of
`World`.
"""

import asyncio
import sqlite3
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from cheops.config.services import service_of
from cheops.engine.events import Answer, Outcome, Queried, Ran, Resolved, Run, Stage, Verified
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits, Settings
from cheops.errors import ClientError
from cheops.gateway.headers import ForwardingInfo, Headers, RequestHead
from cheops.gateway.interfaces import Response
from cheops.log.operation import OpId, Status
from cheops.scope.route import Replicas
from cheops.sim.event_loop import VirtualLoop
from cheops.sim.http_agent import Agent, ClientRequest, broken_off, config_of, connection_refused, running_step
from cheops.sim.http_service import SERVICES, ModelService, Reply
from cheops.sim.node import Execution, Node
from cheops.sim.workload import Profile
from cheops.sim.world import World

_READS = ("GET", "HEAD")
_WAIT_S = 3  # how long clients wait


class Fate(Enum):
    """What becomes of a request to a service."""

    ANSWERED = auto()
    REFUSED = auto()  # no connection
    DONE = auto()  # it is done, and the service stops before it answers
    LOST = auto()  # the service stops before it is done


@dataclass
class Sent:
    """A request of a client, and what became of it."""

    number: int
    site: str
    service: str
    method: str
    path: str  # as the client wrote it, with meta-ids
    content: dict[str, Any]
    sites: tuple[str, ...] = ()  # of its scope; none: it has none
    has_credentials: bool = False
    status: int | None = None  # None: its client got no response
    resource: str = ""
    op: str = ""
    is_open: bool = True  # its client still waits
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b""

    @property
    def is_acknowledged(self) -> bool:
        return self.status is not None and 200 <= self.status < 300 and self.status != 202

    @property
    def has_no_effect(self) -> bool:
        """Whether it certainly did nothing: refused, or not sent."""
        return self.status is not None and (400 <= self.status < 500 or self.status == 501)


class HttpWorld(World):
    """Carries out what agents with gateways do, and keeps what clients sent and got."""

    def __init__(self, seed: int, names: tuple[str, ...], profile: Profile) -> None:
        self.loop = VirtualLoop(lambda: self.now_ms, self.after)  # type: ignore[abstract]
        self.copies = {name: sqlite3.connect(":memory:", isolation_level=None) for name in names}
        self.services: dict[tuple[str, str], ModelService] = {
            (site, service): make(number) for number, site in enumerate(names) for service, make in SERVICES.items()
        }
        self.agents: dict[str, Agent] = {}
        self.sent: list[Sent] = []
        self.made: dict[tuple[str, str, OpId], str] = {}  # what an operation created at a site: where
        super().__init__(seed, names, profile)

    def settings(self, profile: Profile) -> Settings:
        del profile
        # Limits are low for the same reason as in every world.
        return replace(config_of("site1").engine, limits=Limits(idle_ms=3_000, seal_after=3, parked=1))

    # -- lives ---------------------------------------------------------------------------------------------

    def restart(self, name: str) -> None:
        if self.nodes[name].site is None:
            self.agents[name] = Agent(self, name)
        super().restart(name)

    def crash(self, name: str, down_ms: int, why: str = "") -> None:
        if self.nodes[name].site is not None:
            self.agents[name].end()
        super().crash(name, down_ms, why)

    def close(self) -> None:
        """End everything that is still under way."""
        self.loop.cancel_all()
        self.run_until(self.now_ms)
        for connection in self.copies.values():
            connection.close()

    # -- runs ----------------------------------------------------------------------------------------------

    def begin_run(self, node: Node, run: Run) -> None:
        self.check_rest(node)
        for step in run.steps:
            if step.op is not None and not step.again:
                node.attempted[run.resource, step.op] = False
        agent = self.agents[node.name]
        agent.start(self._run_steps(agent, node, run))

    async def _run_steps(self, agent: Agent, node: Node, run: Run) -> None:
        outcomes: tuple[Outcome, ...] = await agent.backend.run(run)
        await asyncio.sleep(self.random.randint(0, 10) / 1000)
        if agent.is_alive:
            self.deliver(node.name, Ran(run.resource, run.n, outcomes))

    def note_answer(self, node: Node, answer: Answer) -> None:
        if answer.stage is Stage.DECIDED and answer.op and answer.status is Status.OK:
            self.acknowledged.setdefault(answer.resource, set()).add(answer.op)
        agent = self.agents[node.name]
        if agent.is_alive:
            agent.pending_requests.deliver(answer)

    # -- services ------------------------------------------------------------------------------------------

    async def call_service(self, agent: Agent, name: str, method: str, target: str, body: bytes) -> Reply:
        """A request of an agent to the service of its site. It is done, or not, whatever becomes of the agent."""
        service, where = self.services[agent.name, name], f"{name} of {agent.name}"
        fate = self.draw_fate(service)
        if fate is Fate.REFUSED:
            self.inject("service refused connection")
            raise connection_refused(where)
        stops, arrives = fate is not Fate.ANSWERED, fate is not Fate.LOST
        reply: asyncio.Future[Reply] = self.loop.create_future()
        about = running_step.get()

        def arrive() -> None:
            done = service.handle(method, target, body) if arrives else (0, {})
            if _had_effect(method, done):
                self._note_effect(agent.name, about, target, done)
            if stops:
                self.inject("service stopped after its effect" if arrives else "service stopped without effect")
                service.down_until_ms = self.now_ms + self.random.randint(50, 1_500)
            self.after(self.random.randint(0, 10), lambda: answer(done))

        def answer(done: Reply) -> None:
            if reply.done():
                return
            if stops:
                reply.set_exception(broken_off(where))
            else:
                reply.set_result(done)

        self.after(self.random.randint(1, 15), arrive)
        return await reply

    def draw_fate(self, service: ModelService) -> Fate:
        trouble = 0 if self.calm else self.profile.trouble
        luck = self.random.random()
        if luck < trouble or self.now_ms < service.down_until_ms:
            return Fate.REFUSED
        if luck >= trouble * 1.5:
            return Fate.ANSWERED
        return Fate.DONE if self.random.random() < 0.5 else Fate.LOST

    def _note_effect(self, site: str, about: tuple[str, OpId] | None, target: str, reply: Reply) -> None:
        if about is None:
            return
        resource, op = about
        self.nodes[site].attempted[resource, op] = True
        self.nodes[site].log.append(Execution(resource, op, False, True))
        if isinstance(reply[1], dict) and "id" in reply[1]:
            self.made[site, resource, op] = f"{target}/{reply[1]['id']}"

    # -- requests ------------------------------------------------------------------------------------------

    async def request(self, sent: Sent, body: bytes) -> None:
        """Send a request of a client to the gateway of a site, and wait for the response; `sent` gets it."""
        self.sent.append(sent)
        scope = f" at {' & '.join(sent.sites)}" if sent.sites else ""
        self.inject("request sent", f"{sent.site} gets {sent.method} {sent.path} {body.decode()}{scope}")
        headers: Headers = (("Content-Type", "application/json"), ("Prefer", f"wait={_WAIT_S}"))
        if sent.has_credentials:
            headers = (*headers, ("X-Auth-Token", "token"))
        if sent.sites:
            headers = (*headers, ("Scope", f"{sent.service}: {' & '.join(sent.sites)}"))
        head = RequestHead(sent.method, sent.path, headers)
        agent = self.agents[sent.site]
        if not agent.is_alive:
            sent.is_open = False
            return
        request = ClientRequest(head, body, ForwardingInfo(sent.site, "127.0.0.1"))
        response = await self._ended(agent, agent.serve(sent.service, request, _route(sent.sites)))
        sent.is_open = False
        if response is None:
            self.record(f"{sent.site} gives no response to {sent.method} {sent.path}")
            return
        sent.status, sent.headers = response.status, {name.lower(): value for name, value in response.headers}
        sent.answer = response.body if isinstance(response.body, bytes) else b""
        if link := sent.headers.get("link"):
            sent.resource, _, sent.op = link.partition(">")[0].rpartition("/resources/")[2].partition("/operations/")
        shown = sent.answer.decode()[:100] if sent.has_no_effect else sent.op
        self.record(f"{sent.site} answers {sent.status} to {sent.method} {sent.path} {shown}")

    async def _ended(self, agent: Agent, coro: Any) -> Response | None:
        """The response of an agent; None if it crashes before."""
        done: asyncio.Future[Response | None] = self.loop.create_future()
        task = agent.start(coro)

        def ended(task: asyncio.Task[object]) -> None:
            failed = task.cancelled() or task.exception() is not None
            if not done.done():
                done.set_result(None if failed else task.result())  # type: ignore[arg-type]

        task.add_done_callback(ended)
        return await done

    async def forward(self, agent: Agent, site: str, service: str, request: ClientRequest) -> Response:
        """A request from one gateway to another."""
        other = self.agents[site]
        await asyncio.sleep(self.random.randint(*self.profile.delay_ms) / 1000)
        if not other.is_alive or not self.reaches(agent.name, site):
            raise connection_refused(site)
        scope = dict(request.head.headers).get("Scope", "").partition(": ")[2]
        route = _route(tuple(scope.split(" & ")) if scope else ())
        response = await self._ended(other, other.serve(service, request, route))
        await asyncio.sleep(self.random.randint(*self.profile.delay_ms) / 1000)
        if response is None or not self.reaches(agent.name, site):
            raise broken_off(site)
        return response

    # -- the operator --------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """As `cheops status` does: have every site ask the others about what it has. And tell them, as agents do, where
        the applications may differ."""
        for name, node in self.nodes.items():
            for resource in self.decided:
                if (replica := node.replica(resource)) and name in replica.sites:
                    self.deliver(name, Queried(resource, refresh=True))
                if replica and (own := replica.drifts.get(name)):
                    for site in replica.sites:
                        self.deliver(site, Verified(resource, name, own.differs, self.now_ms))

    def resolve_unknown(self) -> None:
        """As the operator: look what the service has, and say so."""
        for name, node in self.nodes.items():
            agent = self.agents[name]
            for replica in list(node.site.replicas.values() if node.site and agent.is_alive else ()):
                if replica.applied.unknown is not None:
                    agent.start(self._resolve(agent, replica, replica.applied.unknown.id))

    async def _resolve(self, agent: Agent, replica: Replica, op: OpId) -> None:
        """What a create made under an id that nobody knows is taken away: then it did not happen."""
        resource, rtype = replica.resource, replica.type.name
        payload = next(one.payload for one in (*replica.drafts, *replica.history.ops.values()) if one.id == op)
        happened = self.nodes[agent.name].attempted.get((resource, op), False)
        try:
            await agent.backend.resolved(rtype, resource, payload, happened=happened)
        except ClientError:
            self.services[agent.name, service_of(rtype) or ""].forget(self.made.pop((agent.name, resource, op)))
            happened = False
        self.inject("operator resolved an unknown")
        self.record(f"the operator says at {agent.name} that {op} {'happened' if happened else 'did not happen'}")
        self.deliver(agent.name, Resolved(resource, op, happened))


def _had_effect(method: str, reply: Reply) -> bool:
    refused = isinstance(reply[1], dict) and reply[1].get("succeeded") is False
    return 200 <= reply[0] < 300 and method not in _READS and not refused


def _route(sites: tuple[str, ...]) -> Replicas | None:
    return Replicas(sites) if sites else None
