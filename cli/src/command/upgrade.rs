//! `warren upgrade`: replaces the program of one machine after the other. What is next is decided from the state of the
//! cluster before each machine, so a repeated command continues.

mod plan;
mod program;

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use warren_client::{Client, Error};
use warren_proto::status::NODE_NOT_UPGRADED;
use warren_proto::v1;

use self::plan::{HealthGoal, Machine, Obstacle, UpgradePlan};
use self::program::UpgradeProgram;
use crate::args::{GlobalArgs, UpgradeArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client, from_client_with_hint};
use crate::output;
use crate::progress::ProgressOutput;
use crate::view::{rounded_bytes, short_digest};
use crate::wait::is_transient;

const WHAT: &str = "nothing was upgraded";
/// Interval at which a restarted machine is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a machine must be healthy with the new program before the next one is restarted.
const HEALTHY_PERIOD: Duration = Duration::from_secs(5);
/// How long a manager or node may not answer before a machine is upgraded.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn run(global: &GlobalArgs, args: &UpgradeArgs) -> Result<(), CommandError> {
    let program = UpgradeProgram::read(&args.program, WHAT)?;
    let client = connect(global, WHAT).await?;
    let mut upgrade = Upgrade {
        client: &client,
        file: &args.program,
        program,
        selected: &args.nodes,
        timeout: global.timeout,
        done: Vec::new(),
        progress: ProgressOutput::Quiet,
    };
    upgrade.run().await?;
    for name in &upgrade.done {
        output::print(&format!("{name}\n"))?;
    }
    Ok(())
}

/// An upgrade in progress.
struct Upgrade<'a> {
    client: &'a Client,
    file: &'a Path,
    program: UpgradeProgram,
    selected: &'a [String],
    /// For each machine.
    timeout: Duration,
    /// Machines that this command upgraded.
    done: Vec<String>,
    progress: ProgressOutput,
}

/// Why a machine is not upgraded.
struct Failure {
    kind: ExitKind,
    why: String,
    hint: String,
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        let CommandError { kind, why, hint, .. } = error;
        Self { kind, why, hint }
    }
}

impl Upgrade<'_> {
    async fn run(&mut self) -> Result<(), CommandError> {
        let mut plan = self.plan().await?;
        let digest = short_digest(&self.program.digest.to_string());
        let mut remaining = self.remaining(&plan);
        if remaining.is_empty() {
            eprintln!("all machines run the program {digest} already: {}", names(&plan.machines));
            return Ok(());
        }
        eprintln!("program {digest} for {}", names(&remaining));
        self.progress = ProgressOutput::new();
        while let Some(machine) = remaining.first() {
            let upgraded = match self.settled(&plan).await {
                Ok(()) => self.upgrade(machine).await,
                Err(Obstacle { why, hint, .. }) => Err(Failure { kind: ExitKind::Conflict, why, hint }),
            };
            upgraded.map_err(|failure| self.stopped_at(machine, failure, &plan))?;
            self.done.push(machine.name().to_owned());
            let what = format!("the upgrade stopped after {}", self.done.join(", "));
            plan = self.plan().await.map_err(|error| CommandError { what, ..error })?;
            remaining = self.remaining(&plan);
        }
        let progress = std::mem::replace(&mut self.progress, ProgressOutput::Quiet);
        progress.end(&format!("{} of {} machines upgraded", self.done.len(), plan.machines.len()));
        Ok(())
    }

    async fn plan(&self) -> Result<UpgradePlan, CommandError> {
        let failed = |error| from_client(WHAT, error);
        let managers = self.client.managers().list().await.map_err(failed)?.managers;
        let nodes = self.client.nodes().list().await.map_err(failed)?;
        UpgradePlan::new(managers, nodes, self.selected, WHAT)
    }

    /// Checks the plan; what may pass by itself has some time for it.
    async fn settled(&self, plan: &UpgradePlan) -> Result<(), Obstacle> {
        let (deadline, floor) = (Instant::now() + SETTLE_TIMEOUT, plan.highest_applied());
        let mut checked = plan.check(&self.program, floor);
        while let Err(Obstacle { is_passing: true, .. }) = &checked
            && Instant::now() < deadline
        {
            sleep(POLL_INTERVAL).await;
            // Without an answer, what was seen last counts.
            if let Ok(plan) = self.plan().await {
                checked = plan.check(&self.program, floor);
            }
        }
        checked
    }

    /// The machines that are still to be upgraded.
    fn remaining(&self, plan: &UpgradePlan) -> Vec<Machine> {
        let is_left = |machine: &&Machine| {
            !machine.runs(&self.program) && !self.done.iter().any(|name| name == machine.name())
        };
        plan.machines.iter().filter(is_left).cloned().collect()
    }

    fn show(&mut self, machine: &Machine, line: &str) {
        self.progress.show("upgrading", &[(machine.name().to_owned(), line.to_owned())]);
    }

    /// Sends the program to the machine, and waits until the machine runs it and is healthy.
    async fn upgrade(&mut self, machine: &Machine) -> Result<(), Failure> {
        let deadline = Instant::now() + self.timeout;
        self.show(machine, &format!("sending the program ({})", rounded_bytes(self.program.size)));
        let response = self.send(machine).await?;
        self.show(machine, "restarting");
        let (mut goal, mut missing) = (HealthGoal::default(), "no manager answered".to_owned());
        let mut healthy_since = None;
        while Instant::now() < deadline {
            match timeout_at(deadline, self.look(machine)).await {
                Err(_) => break,
                Ok(Ok((managers, node))) => match goal.evaluate(machine, &self.program, &managers, &node) {
                    Ok(()) => {
                        let since: &Instant = healthy_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= HEALTHY_PERIOD {
                            self.show(machine, "runs the new program");
                            return Ok(());
                        }
                        missing = "it was healthy for a moment only".to_owned();
                    }
                    Err(why) => (healthy_since, missing) = (None, why),
                },
                Ok(Err(error)) if is_transient(&error) => {
                    (healthy_since, missing) = (None, error.to_string());
                }
                Ok(Err(error)) => return Err(from_client("", error).into()),
            }
            sleep_until(deadline.min(Instant::now() + POLL_INTERVAL)).await;
        }
        let within = crate::view::duration(self.timeout);
        let sent = match &response {
            Some(_) => "it was restarted with the new program",
            None => "it did not say whether it has the new program",
        };
        let previous = response.map(|response| response.previous_program).filter(|path| !path.is_empty());
        let previous =
            previous.map(|path| format!(", and the earlier program is {path} there")).unwrap_or_default();
        Err(Failure {
            kind: ExitKind::TimedOut,
            why: format!("{sent}, and it is not healthy after {within}: {missing}"),
            hint: format!("see the log of its node{previous}"),
        })
    }

    async fn send(&self, machine: &Machine) -> Result<Option<v1::UpgradeNodeResponse>, Failure> {
        let unreadable = |error| from_client("", Error::Input(error));
        let file = tokio::fs::File::open(self.file).await.map_err(unreadable)?;
        let target = v1::UpgradeTarget {
            node: machine.node.as_ref().map(|node| node.id.clone()).unwrap_or_default(),
            size_bytes: self.program.size,
            digest: self.program.digest.to_string(),
        };
        let sent = self.client.nodes().upgrade(target, file, self.timeout).await;
        let refused = |error| {
            let hint = "it runs the earlier program; correct what it says".to_owned();
            from_client_with_hint("", error, NODE_NOT_UPGRADED, hint).into()
        };
        sent.map_err(refused)
    }

    async fn look(&self, machine: &Machine) -> Result<(Vec<v1::Manager>, v1::Node), Error> {
        let id = machine.node.as_ref().map_or("", |node| node.id.as_str());
        let node = self.client.nodes().get(id).await?;
        Ok((self.client.managers().list().await?.managers, node))
    }

    /// The failure, with where the upgrade stands.
    fn stopped_at(&self, machine: &Machine, failure: Failure, plan: &UpgradePlan) -> CommandError {
        let Failure { kind, why, hint } = failure;
        let (name, mut lines) = (machine.name(), vec![why]);
        let is_new = |it: &&Machine| it.runs(&self.program) || self.done.iter().any(|done| done == it.name());
        let (new, old): (Vec<&Machine>, Vec<&Machine>) =
            plan.machines.iter().filter(|it| it.name() != name).partition(is_new);
        for (what, machines) in [("run the new program", new), ("not changed", old)] {
            if !machines.is_empty() {
                lines.push(format!("{what}: {}", names(machines)));
            }
        }
        let repeat = "then repeat the command, which continues; to go back, upgrade with the earlier program";
        CommandError::new(
            kind,
            format!("the upgrade stopped at {name}"),
            lines.join("\n"),
            format!("{hint}; {repeat}"),
        )
    }
}

fn names<'a>(machines: impl IntoIterator<Item = &'a Machine>) -> String {
    machines.into_iter().map(Machine::name).collect::<Vec<_>>().join(", ")
}
