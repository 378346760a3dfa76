//! Decodes steps from bytes. Ids, names and numbers come from small sets, so that commands refer to the same
//! objects; sometimes from the whole range.

mod managers;
mod networks;
mod rollouts;
mod storage;

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::{Arbitrary, Result, Unstructured};
use ipnet::Ipv4Net;
use warren_core::{Command, NewTask};
use warren_types::{
    Availability, Bytes, ClusterId, DesiredTaskState, EnvVar, Health, Id, ImageDigest, Limits, MilliCpu,
    NodeDescription, NodeId, NodeName, NodeRole, NodeStatus, Placement, PlacementPreference, Protocol,
    PublishMode, PublishedPort, Resources, ServiceId, ServiceMode, ServiceSpec, Taint, TaintSelector,
    TaskExit, TaskId, TaskReport, TaskSpec, TaskState, Timestamp, TokenHash, TokenId,
};

/// One step.
pub enum FuzzStep {
    /// A command is proposed.
    Propose(Box<Command>),
    /// A leader of this or a later term.
    Elect {
        term: u64,
    },
    /// A member receives a snapshot.
    Join,
    /// Entries without a command, up to this one.
    Skip {
        index: u64,
    },
    /// Planners.
    Reconcile(ServiceId),
    Reap(ServiceId),
    Schedule,
    ReapTokens,
    Level,
    /// A leader finds the node down, or up again.
    SetReachability {
        node: NodeId,
        down: bool,
    },
    /// A worker reports all its tasks.
    ReportTasks {
        node: NodeId,
        state: TaskState,
        removed: bool,
        health: Health,
    },
}

/// Bytes, read from the front.
pub struct FuzzInput<'a>(Unstructured<'a>);

const TERM: u64 = 3;
const NOW: u64 = 1_795_185_000_000;
/// From this byte on a step is one of the later kinds, so that inputs kept before these decode the same.
const LATER: u8 = 240;
/// The last of the later kinds stands for even later ones.
const STORAGE: u8 = 15;
/// And from this byte on, for those after that.
const MANAGERS: u8 = 240;
/// The last of those stands for even later ones.
const ROLLOUTS: u8 = 255;
/// And from this byte on, for those after that.
const NETWORKS: u8 = 240;

impl<'a> FuzzInput<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// `None` at the end.
    pub fn step(&mut self) -> Option<FuzzStep> {
        if self.0.is_empty() { None } else { self.next().ok() }
    }

    fn next(&mut self) -> Result<FuzzStep> {
        let kind = self.byte()?;
        if kind >= LATER {
            return self.later(kind - LATER);
        }
        Ok(match kind % 24 {
            0 => FuzzStep::Elect { term: self.number(TERM, 4)? },
            1 => FuzzStep::Join,
            2 if self.sometimes()? => FuzzStep::Skip { index: self.number(0, 200)? },
            2 => FuzzStep::SetReachability { node: self.node()?, down: self.sometimes()? },
            3 | 4 => FuzzStep::Reconcile(self.service()?),
            5 => FuzzStep::Reap(self.service()?),
            6 | 7 => FuzzStep::Schedule,
            8 => {
                // Feature levels of members, before they were in the state.
                self.byte()?;
                self.byte()?;
                FuzzStep::Level
            }
            9 | 10 => {
                let (node, state) = (self.node()?, *self.0.choose(&TaskState::ALL)?);
                // Two bits of the byte that says whether they are removed, so that earlier inputs decode the
                // same.
                let byte = self.byte()?;
                let (removed, health) = (byte % 4 == 0, Health::ALL[usize::from(byte / 4 % 4)]);
                FuzzStep::ReportTasks { node, state, removed, health }
            }
            kind => FuzzStep::Propose(Box::new(self.command(kind)?)),
        })
    }

    fn later(&mut self, kind: u8) -> Result<FuzzStep> {
        if kind == STORAGE {
            let (at, kind) = (self.time()?, self.byte()?);
            let command = match kind {
                ..MANAGERS => self.storage(kind, at)?,
                MANAGERS..ROLLOUTS => self.manager_command(kind, at)?,
                ROLLOUTS => {
                    let kind = self.byte()?;
                    if kind < NETWORKS {
                        self.rollout_command(kind, at)?
                    } else {
                        self.network_command(kind, at)?
                    }
                }
            };
            return Ok(FuzzStep::Propose(Box::new(command)));
        }
        let at = self.time()?;
        let command = match kind % 9 {
            0 => return Ok(FuzzStep::ReapTokens),
            1 => {
                let (id, version, mut spec) = (self.service()?, self.version()?, self.spec()?);
                spec.placement = self.placement()?;
                if self.sometimes()? {
                    spec.mode = ServiceMode::Global;
                    spec.bootstrap = spec.task.command.is_some();
                    spec.per = spec.labels.keys().find_map(|key| format!("node.labels.{key}").parse().ok());
                }
                Command::UpdateService { id, version, spec, force: self.sometimes()?, at }
            }
            2 => {
                let (id, version) = (self.service()?, self.version()?);
                let revision = if self.sometimes()? { Some(self.number(1, 4)?) } else { None };
                Command::RollbackService { id, version, revision, at }
            }
            3 => {
                let (id, version, label_add) = (self.node()?, self.version()?, self.labels()?);
                let label_rm: BTreeSet<String> = self.list(2, Self::short_text)?.into_iter().collect();
                let all = [Availability::Active, Availability::Pause, Availability::Drain];
                let availability = if self.sometimes()? { Some(*self.0.choose(&all)?) } else { None };
                let taint_add = taints(label_rm.len());
                let taint_rm = tolerations(label_add.len()).into_iter().collect();
                Command::UpdateNode {
                    id,
                    version,
                    label_add,
                    label_rm,
                    availability,
                    taint_add,
                    taint_rm,
                    at,
                }
            }
            4 => Command::RemoveNode { id: self.node()?, force: self.sometimes()?, at },
            5 => {
                let (id, role, hash) = (self.token()?, self.role()?, self.hash()?);
                let expires_at = if self.sometimes()? { Some(self.time()?) } else { None };
                let max_uses = if self.sometimes()? { Some(self.small()?) } else { None };
                // From the number of uses, so that earlier inputs decode the same.
                let is_labelled = role == NodeRole::Worker && max_uses.is_some_and(|uses| uses > 1);
                let labels = is_labelled.then(|| ("zone".to_owned(), "a".to_owned())).into_iter().collect();
                Command::CreateToken { id, role, hash, expires_at, max_uses, labels, at }
            }
            6 => Command::RemoveToken { id: self.token()?, at },
            7 => {
                let (hash, id, name) = (self.hash()?, self.node()?, self.name()?);
                let taints = taints(name.len() / 4);
                let (name, description) = (name.parse().expect("the name is valid"), self.description()?);
                Command::JoinNode { hash, id, name, description, taints, at }
            }
            _ => {
                let term = self.number(TERM, 1)?;
                Command::DeleteTokens { term, tokens: self.list(3, Self::token)?, at }
            }
        };
        Ok(FuzzStep::Propose(Box::new(command)))
    }

    fn command(&mut self, kind: u8) -> Result<Command> {
        let term = self.number(TERM, 1)?;
        let at = self.time()?;
        Ok(match kind {
            11 => {
                let ranges = self.list(3, Self::range)?;
                Command::CreateCluster { id: ClusterId(self.id()?), ranges, feature_level: self.level()?, at }
            }
            12 | 13 => Command::CreateService { id: self.service()?, spec: self.spec()?, at },
            14 => {
                let (id, version, replicas) = (self.service()?, self.version()?, self.small()?);
                Command::ScaleService { id, version, replicas, at }
            }
            15 => {
                let (id, version) = (self.service()?, self.version()?);
                Command::RemoveService { id, version, force: version.is_some(), at }
            }
            16 => {
                let (service, revision) = (self.service()?, self.number(1, 1)?);
                Command::CreateTasks { term, service, revision, slots: self.list(6, Self::new_task)?, at }
            }
            17 => {
                let placements = self.list(6, |input| Ok((input.task()?, input.node()?)))?;
                Command::AssignTasks { term, placements, at }
            }
            18 => {
                let (tasks, desired) = (self.list(6, Self::task)?, *self.0.choose(&DesiredTaskState::ALL)?);
                Command::SetDesiredTaskState { term, tasks, desired, at }
            }
            19 if self.sometimes()? => Command::DeleteTasks { term, tasks: self.list(6, Self::task)? },
            19 => Command::DeleteService { term, id: self.service()? },
            20 if self.sometimes()? => Command::RaiseFeatureLevel { term, level: self.level()? },
            20 => {
                let statuses = [NodeStatus::Unknown, NodeStatus::Ready, NodeStatus::Down];
                let (node, session) = (self.node()?, self.number(1, 4)?);
                Command::SetNodeStatus { term, node, session, status: *self.0.choose(&statuses)?, at }
            }
            21 => {
                let (id, name): (_, NodeName) =
                    (self.node()?, self.name()?.parse().expect("the name is valid"));
                let (description, role, taints) =
                    (self.description()?, self.role()?, taints(name.as_str().len() / 4));
                Command::RegisterNode { id, name, role, description, taints, at }
            }
            22 => {
                let (node, description, manager) = (self.node()?, self.description()?, 0);
                Command::OpenSession { node, description, manager, at }
            }
            _ => {
                let (node, session) = (self.node()?, self.number(1, 4)?);
                Command::ReportTasks { node, session, reports: self.list(5, Self::report)?, at }
            }
        })
    }

    fn byte(&mut self) -> Result<u8> {
        u8::arbitrary(&mut self.0)
    }

    fn sometimes(&mut self) -> Result<bool> {
        Ok(self.byte()? % 4 == 0)
    }

    /// With a chance of one in 16.
    fn rarely(&mut self) -> Result<bool> {
        Ok(self.byte()? % 16 == 15)
    }

    /// `from` to `from + most`; rarely any value.
    fn number(&mut self, from: u64, most: u64) -> Result<u64> {
        if self.rarely()? { u64::arbitrary(&mut self.0) } else { self.0.int_in_range(from..=from + most) }
    }

    fn small(&mut self) -> Result<u32> {
        Ok(u32::try_from(self.number(0, 6)?).unwrap_or(u32::MAX))
    }

    fn level(&mut self) -> Result<u32> {
        self.small()
    }

    fn version(&mut self) -> Result<Option<u64>> {
        if self.sometimes()? { self.number(1, 20).map(Some) } else { Ok(None) }
    }

    fn time(&mut self) -> Result<Timestamp> {
        self.number(NOW, 255).map(Timestamp)
    }

    fn id(&mut self) -> Result<Id> {
        let any = self.rarely()?;
        Ok(Id(if any { u128::arbitrary(&mut self.0)? } else { u128::from(self.byte()? % 4) }))
    }

    fn service(&mut self) -> Result<ServiceId> {
        self.id().map(ServiceId)
    }

    fn node(&mut self) -> Result<NodeId> {
        self.id().map(NodeId)
    }

    fn task(&mut self) -> Result<TaskId> {
        // A task's number starts at 1; 0 cannot be encoded.
        Ok(TaskId { service: self.service()?, number: self.number(1, 11)?.max(1) })
    }

    fn token(&mut self) -> Result<TokenId> {
        self.id().map(TokenId)
    }

    fn hash(&mut self) -> Result<TokenHash> {
        Ok(TokenHash([self.byte()? % 4; 32]))
    }

    fn role(&mut self) -> Result<NodeRole> {
        self.0.choose(&[NodeRole::Worker, NodeRole::Manager]).copied()
    }

    fn digest(&mut self) -> Result<ImageDigest> {
        let letter = *self.0.choose(&["a", "b"])?;
        Ok(format!("sha256:{}", letter.repeat(64)).parse().expect("the digest is valid"))
    }

    fn labels(&mut self) -> Result<BTreeMap<String, String>> {
        Ok(self.list(2, |input| Ok((input.short_text()?, input.short_text()?)))?.into_iter().collect())
    }

    fn placement(&mut self) -> Result<Placement> {
        let given = ["node.labels.a == a", "node.name in (a,b)", "node.role != manager", "node.id == 1"];
        let constraint =
            |input: &mut Self| Ok(input.0.choose(&given)?.parse().expect("the constraint is valid"));
        let constraints = self.list(2, constraint)?;
        let max_per_node = if self.sometimes()? { Some(self.small()?) } else { None };
        let (tolerations, preferences) = (tolerations(constraints.len()), preferences(constraints.len()));
        Ok(Placement { tolerations, preferences, constraints, max_per_node })
    }

    fn list<T>(&mut self, most: usize, one: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        (0..self.0.int_in_range(0..=most)?).map(|_| one(self)).collect()
    }

    fn name(&mut self) -> Result<&'static str> {
        self.0.choose(&["a", "b", "c", "web", "node-1"]).copied()
    }

    fn short_text(&mut self) -> Result<String> {
        Ok(self.0.choose(&["", "a", "b=c", "\u{1f98a}", "a longer text with more words"])?.to_string())
    }

    fn range(&mut self) -> Result<Ipv4Net> {
        let given = ["10.0.0.0/8", "10.0.0.0/23", "172.16.5.0/24", "0.0.0.0/1", "224.0.0.0/3", "10.0.0.1/30"];
        if self.rarely()? {
            let (address, length) = (u32::arbitrary(&mut self.0)?, self.byte()? % 33);
            return Ok(Ipv4Net::new(address.into(), length).expect("a length of 0 to 32"));
        }
        Ok(self.0.choose(&given)?.parse().expect("the range is valid"))
    }

    fn resources(&mut self) -> Result<Resources> {
        Ok(Resources { cpu: MilliCpu(self.number(0, 400)?), memory: Bytes(self.number(0, 400)? << 20) })
    }

    fn description(&mut self) -> Result<NodeDescription> {
        let total = self.number(0, 4000)?;
        Ok(NodeDescription {
            resources: Resources { cpu: MilliCpu(total), memory: Bytes(total << 20) },
            disk: Bytes(total << 30),
            os: "linux".into(),
            architecture: self.short_text()?,
            kernel: String::new(),
            runtime: String::new(),
            version: "1".into(),
            address: self.short_text()?,
            data_address: None,
            wireguard_key: None,
            apparmor_missing: false,
            labels: self.labels()?,
        })
    }

    fn spec(&mut self) -> Result<ServiceSpec> {
        let mut task = TaskSpec::new("demo:1".parse().expect("the reference is valid"));
        task.reservations = self.resources()?;
        if self.sometimes()? {
            task.command = Some(self.list(3, Self::short_text)?);
            task.args = Some(self.list(3, Self::short_text)?);
            task.env =
                self.list(3, |input| Ok(EnvVar { name: input.short_text()?, value: input.short_text()? }))?;
            task.limits = Limits { cpu: Some(MilliCpu(self.number(10, 500)?)), memory: None, pids: Some(64) };
            task.stop_grace = std::time::Duration::from_millis(self.number(0, 20_000)?);
        }
        let name = self.name()?.parse().expect("the name is valid");
        Ok(ServiceSpec {
            labels: self.labels()?,
            mode: ServiceMode::Replicated { replicas: self.small()? },
            ports: self.list(2, Self::port)?,
            ..ServiceSpec::new(name, task)
        })
    }

    fn port(&mut self) -> Result<PublishedPort> {
        let host_ip = if self.sometimes()? { Some([10, 0, 0, self.byte()? % 2].into()) } else { None };
        let host_port = 80 + u16::from(self.byte()? % 3);
        let (protocol, mode) = (Protocol::Tcp, PublishMode::Host);
        Ok(PublishedPort {
            host_ip,
            host_port,
            container_port: 80,
            protocol,
            mode,
            prefer_local: false,
            client_affinity: false,
        })
    }

    fn new_task(&mut self) -> Result<NewTask> {
        let not_before = if self.sometimes()? { Some(self.time()?) } else { None };
        let slot = self.small()?;
        let desired = if self.sometimes()? { DesiredTaskState::Ready } else { DesiredTaskState::Running };
        let replaces = if self.sometimes()? { Some(self.number(1, 11)?) } else { None };
        let bound_to = if self.sometimes()? { Some(self.node()?) } else { None };
        let label_value = (bound_to.is_none() && not_before.is_some()).then(|| slot.to_string().into());
        Ok(NewTask { slot, not_before, desired, replaces, bound_to, label_value })
    }

    fn report(&mut self) -> Result<TaskReport> {
        let (out_of_memory, byte) = (self.sometimes()?, self.byte()?);
        let (code, health) = (i32::from(byte) - 1, Health::ALL[usize::from(byte % 4)]);
        Ok(TaskReport {
            task: self.task()?,
            attempt: self.small()?,
            state: *self.0.choose(&TaskState::ALL)?,
            since: self.time()?,
            reason: self.short_text()?.repeat(1 + usize::from(self.byte()?)),
            ready: self.sometimes()?,
            exit: self.sometimes()?.then_some(TaskExit { code, out_of_memory }),
            removed: self.sometimes()?,
            health,
            next_attempt: if self.sometimes()? { Some(self.time()?) } else { None },
            image: if self.sometimes()? { Some(self.digest()?) } else { None },
        })
    }
}

/// Taints that follow from another part of the command.
fn taints(seed: usize) -> BTreeSet<Taint> {
    let given = ["a:NoSchedule", "a=b:NoSchedule", "b=a:PreferNoSchedule", "a:NoExecute"];
    (1..=given.len()).filter(|place| seed / place % 2 == 1).map(|place| parse(given[place - 1])).collect()
}

fn tolerations(seed: usize) -> Vec<TaintSelector> {
    let given = ["a", "a=b", "b:PreferNoSchedule", "*"];
    (1..=given.len()).filter(|place| seed / place % 2 == 1).map(|place| parse(given[place - 1])).collect()
}

fn preferences(seed: usize) -> Vec<PlacementPreference> {
    ["spread=node.labels.a", "spread=engine.labels.b"][..seed.min(2)].iter().map(|text| parse(text)).collect()
}

fn parse<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().expect("the text is valid")
}
