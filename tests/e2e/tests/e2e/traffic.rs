//! Pages of published ports, from everywhere a client can be.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use warren_testkit::process::Process;
use warren_testkit::tool;
use warren_testkit::wait::{Look, eventually};

use crate::e2e::world::{SOON, World};

/// Where a client is, and by which address it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// On the node, by 127.0.0.1.
    Loopback,
    /// On the node, by the node's own address.
    OwnAddress,
    /// On another host.
    Outside,
}

/// All of them.
pub const WAYS: [Way; 3] = [Way::Loopback, Way::OwnAddress, Way::Outside];

impl World {
    /// The host name of the container that answers on `port`; else what went wrong.
    pub fn who_answers(&self, way: Way, port: u16) -> Look<String> {
        let mut curl = match way {
            Way::Loopback | Way::OwnAddress => self.node.host().command("curl"),
            Way::Outside => self.neighbour.command("curl"),
        };
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "2", &self.url(way, port)]);
        let page = tool::stdout(curl, tool::DEADLINE).map_err(|error| format!("{way:?}: {error}"))?;
        let (_, rest) = page.split_once("host name</th><td>").ok_or_else(|| page.clone())?;
        Ok(rest.split('<').next().unwrap_or_default().to_owned())
    }

    fn url(&self, way: Way, port: u16) -> String {
        let own = self.node.host().address().to_string();
        let address = if way == Way::Loopback { "127.0.0.1" } else { &own };
        format!("http://{address}:{port}/")
    }

    /// Waits until `port` was answered by each of `hosts`, and fails if anybody else answers.
    #[track_caller]
    pub fn assert_answered_by(&self, way: Way, port: u16, hosts: &[&str]) {
        let wanted: BTreeSet<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut seen = BTreeSet::new();
        eventually(SOON, &format!("answers of {wanted:?} on {port} ({way:?})"), || {
            seen.insert(self.who_answers(way, port)?);
            assert!(seen.is_subset(&wanted), "wanted {wanted:?} to answer, found {seen:?}");
            if seen == wanted { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }

    /// Waits until nobody answers on `port`, and sees that the client is told so at once.
    #[track_caller]
    pub fn assert_refused(&self, way: Way, port: u16) {
        eventually(SOON, &format!("port {port} to be closed ({way:?})"), || {
            match self.who_answers(way, port) {
                Ok(host) => Err(format!("{host} answers")),
                Err(why) if why.contains("Connection refused") || why.contains("Couldn't connect") => Ok(()),
                Err(why) => Err(why),
            }
        });
    }
}

/// A client on another host that asks for a page again and again.
pub struct Asker {
    process: Process,
}

impl Asker {
    /// Starts asking for the page of `port`.
    #[track_caller]
    pub fn start(world: &World, port: u16) -> Asker {
        let url = world.url(Way::Outside, port);
        let script = "while :; do curl -sSf --max-time 5 -o /dev/null \"$0\" && echo answered; \
                      sleep 0.05; done";
        let mut bash = world.neighbour.command("bash");
        bash.args(["-c", script, &url]);
        let log: PathBuf = world.node.scratch().join(format!("asker-{port}.log"));
        let asker = Asker { process: Process::spawn("the asking client", bash, &log) };
        asker.assert_progress(Duration::from_secs(10));
        asker
    }

    /// Waits for further answers.
    #[track_caller]
    pub fn assert_progress(&self, deadline: Duration) {
        let before = self.answers();
        eventually(deadline, "further answers", || {
            if self.answers() >= before + 3 { Ok(()) } else { Err(self.process.log_tail(5)) }
        });
    }

    fn answers(&self) -> usize {
        self.process.log().lines().filter(|line| *line == "answered").count()
    }

    /// Sees that every single question was answered.
    #[track_caller]
    pub fn assert_never_refused(self) {
        let log = self.process.log();
        let failed: Vec<&str> = log.lines().filter(|line| *line != "answered").collect();
        assert!(
            failed.is_empty(),
            "{} of {} questions failed: {failed:?}",
            failed.len(),
            log.lines().count()
        );
    }
}
