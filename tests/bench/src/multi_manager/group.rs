//! Managers as separate processes on loopback, without agents.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tempfile::TempDir;
use warren_test_history::workload::AdminAccess;
use warren_testkit::cli::WarrenCli;
use warren_testkit::ports;
use warren_testkit::process::ChildProcess;
use warren_testkit::wait::try_eventually;

use crate::node::cpu_seconds;

/// For operations that take seconds at most on an idle machine.
pub const SOON: Duration = Duration::from_secs(60);
/// The range of the nodes' subnets: enough for 65,536 nodes.
const RANGE: &str = "10.0.0.0/8";

/// The managers of one cluster.
pub struct ManagerProcesses {
    // In this order: the processes end before their files are removed.
    members: Vec<ManagerProcessHandle>,
    _sockets: TempDir,
    _data: TempDir,
}

struct ManagerProcessHandle {
    process: ChildProcess,
    warren: WarrenCli,
    address: SocketAddr,
    data: PathBuf,
    sockets: PathBuf,
}

impl ManagerProcesses {
    /// Creates a cluster of that many managers and waits until all of them are in service.
    pub fn start(managers: usize) -> anyhow::Result<Self> {
        // A socket's path must be short, and needs no disk space.
        let (data, sockets) = (crate::commits::scratch()?, tempfile::tempdir()?);
        let mut group = Self { members: Vec::new(), _sockets: sockets, _data: data };
        for number in 1..=managers {
            group.add(number)?;
        }
        group.wait_all_voters()?;
        Ok(group)
    }

    fn add(&mut self, number: usize) -> anyhow::Result<()> {
        let address: SocketAddr = format!("127.0.0.1:{}", ports::allocate()).parse()?;
        let data = self._data.path().join(format!("m{number}"));
        let sockets = self._sockets.path().join(format!("m{number}"));
        let warren = WarrenCli::new(&self._sockets.path().join(format!("contexts-{number}.toml")));
        let words = match self.members.first() {
            None => vec!["manager".into(), "init".into(), "--cluster-range".into(), RANGE.to_owned()],
            Some(first) => {
                let words = ["token", "create", "--role", "manager", "--uses", "1", "--quiet"];
                let token = first.warren.run_ok(&words).trim().to_owned();
                vec!["manager".into(), "join".into(), first.address.to_string(), "--token".into(), token]
            }
        };
        let mut command = warren.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let name = format!("m{number}");
        command.args(["--manager-only", "--metrics-listen", "none", "--node-name", &name]);
        command.arg("--listen").arg(address.to_string()).arg("--advertise").arg(address.to_string());
        command.arg("--data-dir").arg(&data).arg("--run-dir").arg(&sockets);
        let log = self._sockets.path().join(format!("{name}.log"));
        let process = ChildProcess::spawn(&name, command, &log);
        self.members.push(ManagerProcessHandle { process, warren, address, data, sockets });
        let place = self.members.len() - 1;
        try_eventually(SOON, "an answer of a new manager", || self.managers(place))
            .map_err(anyhow::Error::msg)?;
        Ok(())
    }

    /// The managers as listed by the manager at `place`.
    fn managers(&self, place: usize) -> Result<Vec<Value>, String> {
        let ran = self.members[place].warren.run(&["manager", "ls", "-o", "json"]);
        let output: Value = serde_json::from_str(&ran.stdout).map_err(|_| ran.to_string())?;
        output.as_array().cloned().ok_or_else(|| ran.to_string())
    }

    /// Waits until every manager reports that all of them answer and vote, except an even one; returns the
    /// leader's index.
    pub fn wait_all_voters(&self) -> anyhow::Result<usize> {
        let voters = self.members.len() - usize::from(self.members.len().is_multiple_of(2));
        let mut leader = 0;
        for place in 0..self.members.len() {
            let found = try_eventually(SOON, "all managers at work", || {
                let managers = self.managers(place)?;
                let ready = managers.iter().filter(|it| it["status"] == "READY");
                let votes = ready.filter(|it| it["suffrage"] == "voter").count();
                let leads = managers.iter().find(|it| it["leader"] == true);
                let address = leads.and_then(|it| it["address"].as_str()).map(str::to_owned);
                address.filter(|_| votes == voters).ok_or_else(|| format!("{managers:#?}"))
            });
            let found = found.map_err(anyhow::Error::msg)?;
            let led = self.members.iter().position(|member| member.address.to_string() == found);
            leader = led.with_context(|| format!("{found} is not a manager of this group"))?;
        }
        Ok(leader)
    }

    /// Their addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.address).collect()
    }

    /// The CLI of the first one.
    pub fn warren(&self) -> &WarrenCli {
        &self.members[0].warren
    }

    /// An administrator's access.
    pub fn access(&self) -> AdminAccess {
        AdminAccess::of_contexts(&self._sockets.path().join("contexts-1.toml"))
    }

    /// kill -9.
    pub fn kill(&mut self, place: usize) {
        self.members[place].process.kill();
    }

    /// SIGTERM, without waiting for its end.
    pub fn terminate(&mut self, place: usize) {
        self.members[place].process.signal(nix::sys::signal::Signal::SIGTERM);
    }

    /// Starts it again once it has ended.
    pub fn run_again(&mut self, place: usize) -> anyhow::Result<()> {
        let member = &mut self.members[place];
        member.process.wait(SOON);
        let mut command = member.warren.command(&["manager", "run"]);
        command.arg("--data-dir").arg(&member.data).arg("--run-dir").arg(&member.sockets);
        let log = self._sockets.path().join(format!("m{}.log", place + 1));
        member.process = ChildProcess::spawn("a manager", command, &log);
        ensure!(member.process.is_running(), "a manager did not start again");
        Ok(())
    }

    /// The CPU time of all of them, in seconds.
    pub fn cpu(&self) -> anyhow::Result<f64> {
        self.members.iter().try_fold(0.0, |sum, member| Ok(sum + cpu_seconds(member.process.pid())?))
    }

    /// Of the manager at `place`.
    pub fn pid(&self, place: usize) -> i32 {
        self.members[place].process.pid()
    }
}
