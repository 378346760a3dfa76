//! Steps from bytes. Ids, names and numbers come from small sets, so that commands meet, and now and then
//! from everywhere.

use arbitrary::{Arbitrary, Result, Unstructured};
use ipnet::Ipv4Net;
use warren_core::{Command, NewTask};
use warren_types::{
    Bytes, ClusterId, Desired, EnvVar, Exit, Id, Limits, MilliCpu, Mode, NodeDescription, NodeId, NodeStatus,
    Protocol, PublishMode, PublishedPort, Resources, ServiceId, ServiceSpec, TaskId, TaskReport, TaskSpec,
    TaskState, Timestamp,
};

/// What happens next.
pub enum Step {
    /// Somebody proposes.
    Say(Box<Command>),
    /// A leader of this or a later term.
    Elect {
        term: u64,
    },
    /// A member is sent a snapshot.
    Join,
    /// Entries without a command, up to this one.
    Skip {
        index: u64,
    },
    /// Planners.
    Reconcile(ServiceId),
    Reap(ServiceId),
    Schedule,
    Level(Vec<u32>),
    /// A leader finds the node silent, or hears of it again.
    Judge {
        node: NodeId,
        down: bool,
    },
    /// A worker reports all its tasks.
    Work {
        node: NodeId,
        state: TaskState,
        removed: bool,
    },
}

/// Bytes, read from the front.
pub struct Input<'a>(Unstructured<'a>);

const TERM: u64 = 3;
const NOW: u64 = 1_795_185_000_000;

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// `None` at the end.
    pub fn step(&mut self) -> Option<Step> {
        if self.0.is_empty() { None } else { self.next().ok() }
    }

    fn next(&mut self) -> Result<Step> {
        Ok(match self.byte()? % 24 {
            0 => Step::Elect { term: self.number(TERM, 4)? },
            1 => Step::Join,
            2 if self.sometimes()? => Step::Skip { index: self.number(0, 200)? },
            2 => Step::Judge { node: self.node()?, down: self.sometimes()? },
            3 | 4 => Step::Reconcile(self.service()?),
            5 => Step::Reap(self.service()?),
            6 | 7 => Step::Schedule,
            8 => Step::Level(vec![self.byte()?.into(), self.byte()?.into()]),
            9 | 10 => {
                let (node, state) = (self.node()?, *self.0.choose(&TaskState::ALL)?);
                Step::Work { node, state, removed: self.sometimes()? }
            }
            kind => Step::Say(Box::new(self.command(kind)?)),
        })
    }

    fn command(&mut self, kind: u8) -> Result<Command> {
        let term = self.number(TERM, 1)?;
        let at = self.time()?;
        Ok(match kind {
            11 => {
                let ranges = self.list(3, Self::range)?;
                Command::CreateCluster { id: ClusterId(self.id()?), ranges, level: self.level()?, at }
            }
            12 | 13 => Command::CreateService { id: self.service()?, spec: self.spec()?, at },
            14 => {
                let (id, version, replicas) = (self.service()?, self.version()?, self.small()?);
                Command::ScaleService { id, version, replicas, at }
            }
            15 => Command::RemoveService { id: self.service()?, version: self.version()?, at },
            16 => {
                let (service, revision) = (self.service()?, self.number(1, 1)?);
                Command::CreateTasks { term, service, revision, slots: self.list(6, Self::new_task)?, at }
            }
            17 => {
                let placements = self.list(6, |input| Ok((input.task()?, input.node()?)))?;
                Command::AssignTasks { term, placements, at }
            }
            18 => {
                let (tasks, desired) = (self.list(6, Self::task)?, *self.0.choose(&Desired::ALL)?);
                Command::SetDesired { term, tasks, desired, at }
            }
            19 if self.sometimes()? => Command::DeleteTasks { term, tasks: self.list(6, Self::task)? },
            19 => Command::DeleteService { term, id: self.service()? },
            20 if self.sometimes()? => Command::RaiseLevel { term, level: self.level()? },
            20 => {
                let statuses = [NodeStatus::Unknown, NodeStatus::Ready, NodeStatus::Down];
                let (node, session) = (self.node()?, self.number(1, 4)?);
                Command::SetNodeStatus { term, node, session, status: *self.0.choose(&statuses)?, at }
            }
            21 => {
                let (id, name) = (self.node()?, self.name()?.parse().expect("names are names"));
                Command::RegisterNode { id, name, description: self.description()?, at }
            }
            22 => Command::OpenSession { node: self.node()?, description: self.description()?, at },
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

    /// One time in 16.
    fn rarely(&mut self) -> Result<bool> {
        Ok(self.byte()? % 16 == 15)
    }

    /// `from` to `from + most`; rarely any.
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
        // A task's number counts from 1, and 0 has no spelling.
        Ok(TaskId { service: self.service()?, number: self.number(1, 11)?.max(1) })
    }

    fn list<T>(&mut self, most: usize, one: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        (0..self.0.int_in_range(0..=most)?).map(|_| one(self)).collect()
    }

    fn name(&mut self) -> Result<&'static str> {
        self.0.choose(&["a", "b", "c", "web", "node-1"]).copied()
    }

    fn word(&mut self) -> Result<String> {
        Ok(self.0.choose(&["", "a", "b=c", "\u{1f98a}", "a longer text with more words"])?.to_string())
    }

    fn range(&mut self) -> Result<Ipv4Net> {
        let given = ["10.0.0.0/8", "10.0.0.0/23", "172.16.5.0/24", "0.0.0.0/1", "224.0.0.0/3", "10.0.0.1/30"];
        if self.rarely()? {
            let (address, length) = (u32::arbitrary(&mut self.0)?, self.byte()? % 33);
            return Ok(Ipv4Net::new(address.into(), length).expect("a length of 0 to 32"));
        }
        Ok(self.0.choose(&given)?.parse().expect("ranges are ranges"))
    }

    fn resources(&mut self) -> Result<Resources> {
        Ok(Resources { cpu: MilliCpu(self.number(0, 400)?), memory: Bytes(self.number(0, 400)? << 20) })
    }

    fn description(&mut self) -> Result<NodeDescription> {
        let total = self.number(0, 4000)?;
        Ok(NodeDescription {
            resources: Resources { cpu: MilliCpu(total), memory: Bytes(total << 20) },
            architecture: self.word()?,
            kernel: String::new(),
            runtime: String::new(),
            version: "1".into(),
            address: self.word()?,
        })
    }

    fn spec(&mut self) -> Result<ServiceSpec> {
        let mut task = TaskSpec::new("demo:1".parse().expect("references are references"));
        task.reservations = self.resources()?;
        if self.sometimes()? {
            task.command = Some(self.list(3, Self::word)?);
            task.args = Some(self.list(3, Self::word)?);
            task.env = self.list(3, |input| Ok(EnvVar { name: input.word()?, value: input.word()? }))?;
            task.limits = Limits { cpu: Some(MilliCpu(self.number(10, 500)?)), memory: None };
            task.stop_grace = std::time::Duration::from_millis(self.number(0, 20_000)?);
        }
        Ok(ServiceSpec {
            name: self.name()?.parse().expect("names are names"),
            labels: self.list(2, |input| Ok((input.word()?, input.word()?)))?.into_iter().collect(),
            mode: Mode::Replicated { replicas: self.small()? },
            task,
            ports: self.list(2, Self::port)?,
        })
    }

    fn port(&mut self) -> Result<PublishedPort> {
        let host_ip = if self.sometimes()? { Some([10, 0, 0, self.byte()? % 2].into()) } else { None };
        let host_port = 80 + u16::from(self.byte()? % 3);
        let (protocol, mode) = (Protocol::Tcp, PublishMode::Host);
        Ok(PublishedPort { host_ip, host_port, container_port: 80, protocol, mode })
    }

    fn new_task(&mut self) -> Result<NewTask> {
        let not_before = if self.sometimes()? { Some(self.time()?) } else { None };
        Ok(NewTask { slot: self.small()?, not_before })
    }

    fn report(&mut self) -> Result<TaskReport> {
        let (out_of_memory, code) = (self.sometimes()?, i32::from(self.byte()?) - 1);
        Ok(TaskReport {
            task: self.task()?,
            attempt: self.small()?,
            state: *self.0.choose(&TaskState::ALL)?,
            since: self.time()?,
            reason: self.word()?.repeat(1 + usize::from(self.byte()?)),
            ready: self.sometimes()?,
            exit: self.sometimes()?.then_some(Exit { code, out_of_memory }),
            removed: self.sometimes()?,
        })
    }
}
