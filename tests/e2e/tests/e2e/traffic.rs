//! Requests to published ports, from every possible client location.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_testkit::netns::LabHost;
use warren_testkit::process::ChildProcess;
use warren_testkit::tool;
use warren_testkit::wait::{WaitResult, eventually};

use crate::e2e::fixture::{NodeFixture, SOON};

/// The location of a client, and the address it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientLocation {
    /// On the node, by 127.0.0.1.
    Loopback,
    /// On the node, by the node's own address.
    OwnAddress,
    /// On another host.
    Outside,
}

/// All of them.
pub const CLIENT_LOCATIONS: [ClientLocation; 3] =
    [ClientLocation::Loopback, ClientLocation::OwnAddress, ClientLocation::Outside];

impl NodeFixture {
    /// The host name of the container that answers on `port`, or the error.
    pub fn answering_host(&self, way: ClientLocation, port: u16) -> WaitResult<String> {
        let mut curl = match way {
            ClientLocation::Loopback | ClientLocation::OwnAddress => self.node.host().command("curl"),
            ClientLocation::Outside => self.client_host.command("curl"),
        };
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "5", &self.url(way, port)]);
        let page = tool::stdout(curl, tool::DEADLINE).map_err(|error| format!("{way:?}: {error}"))?;
        let (_, rest) = page.split_once("host name</th><td>").ok_or_else(|| page.clone())?;
        Ok(rest.split('<').next().unwrap_or_default().to_owned())
    }

    /// The answer to a datagram, or the error.
    pub fn datagram(&self, way: ClientLocation, port: u16) -> WaitResult<String> {
        let mut bash = match way {
            ClientLocation::Loopback | ClientLocation::OwnAddress => self.node.host().command("bash"),
            ClientLocation::Outside => self.client_host.command("bash"),
        };
        let script = "exec 3<>/dev/udp/$0/$1 && echo >&3 && timeout 2 head -n 1 <&3";
        bash.args(["-c", script, &self.address(way), &port.to_string()]);
        tool::stdout(bash, tool::DEADLINE).map_err(|error| format!("{way:?}: {error}"))
    }

    fn address(&self, way: ClientLocation) -> String {
        match way {
            ClientLocation::Loopback => "127.0.0.1".to_owned(),
            ClientLocation::OwnAddress | ClientLocation::Outside => self.node.host().address().to_string(),
        }
    }

    fn url(&self, way: ClientLocation, port: u16) -> String {
        format!("http://{}:{port}/", self.address(way))
    }

    /// Waits until each of `hosts` has answered on `port`; fails if another host answers.
    #[track_caller]
    pub fn assert_answered_by(&self, way: ClientLocation, port: u16, hosts: &[&str]) {
        let expected: BTreeSet<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut seen = BTreeSet::new();
        eventually(SOON, &format!("answers of {expected:?} on {port} ({way:?})"), || {
            seen.insert(self.answering_host(way, port)?);
            assert!(seen.is_subset(&expected), "expected answers of {expected:?}, got {seen:?}");
            if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }

    /// Waits until `port` is closed, and checks that the connection is refused at once.
    #[track_caller]
    pub fn assert_refused(&self, way: ClientLocation, port: u16) {
        eventually(SOON, &format!("port {port} to be closed ({way:?})"), || {
            match self.answering_host(way, port) {
                Ok(host) => Err(format!("{host} answers")),
                Err(why) if why.contains("Connection refused") || why.contains("Couldn't connect") => Ok(()),
                Err(why) => Err(why),
            }
        });
    }
}

/// A client on another host that requests a page in a loop.
pub struct PageClient {
    process: ChildProcess,
}

impl PageClient {
    /// Starts requests to `port`.
    #[track_caller]
    pub fn start(world: &NodeFixture, port: u16) -> PageClient {
        let url = world.url(ClientLocation::Outside, port);
        let script = "while :; do curl -sSf --max-time 5 -o /dev/null \"$0\" && echo answered; \
                      sleep 0.05; done";
        let mut bash = world.client_host.command("bash");
        bash.args(["-c", script, &url]);
        let log: PathBuf = world.node.scratch().join(format!("asker-{port}.log"));
        let asker = PageClient { process: ChildProcess::spawn("the asking client", bash, &log) };
        asker.assert_progress(SOON);
        asker
    }

    /// Waits for further answers.
    #[track_caller]
    pub fn assert_progress(&self, deadline: Duration) {
        let before = self.answer_count();
        eventually(deadline, "further answers", || {
            if self.answer_count() >= before + 3 { Ok(()) } else { Err(self.process.log_tail(5)) }
        });
    }

    fn answer_count(&self) -> usize {
        self.process.log().lines().filter(|line| *line == "answered").count()
    }

    /// Asserts that every request was answered.
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

/// Requests a page of the first of its arguments that accepts a connection, and prints the result.
const FAILOVER: &str = r#"
while :; do
    for node in "$@"; do
        result=$(curl --silent --output /dev/null --connect-timeout 1 --max-time 5 --header 'Connection: close' \
            --write-out '%{http_code} %{time_connect} %{errormsg}' "http://$node/")
        [[ $result == *' 0.000000 '* ]] || break
    done
    echo "$node $result"
    sleep 0.02
done
"#;

/// A client that knows several nodes of a service, as by a name with several addresses: it connects to the first
/// one that accepts, and requests a page, again and again.
pub struct FailoverClient {
    process: ChildProcess,
}

impl FailoverClient {
    /// Starts requests from `host` to `port` of `nodes`, which are tried in this order.
    #[track_caller]
    pub fn start(host: &LabHost, nodes: &[Ipv4Addr], port: u16, log: &Path) -> FailoverClient {
        let mut bash = host.command("bash");
        bash.args(["-c", FAILOVER, "client"]).args(nodes.iter().map(|node| format!("{node}:{port}")));
        let client = FailoverClient { process: ChildProcess::spawn("the client", bash, log) };
        client.assert_progress();
        client
    }

    /// Waits for further answers.
    #[track_caller]
    pub fn assert_progress(&self) {
        let before = self.results().0;
        eventually(SOON, "further answers", || {
            if self.results().0 >= before + 3 { Ok(()) } else { Err(self.process.log_tail(5)) }
        });
    }

    /// How many requests were answered, and how the others failed.
    pub fn results(&self) -> (usize, Vec<String>) {
        let log = self.process.log();
        // A line without its end is being written.
        let complete = log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let (answered, failed): (Vec<_>, Vec<_>) =
            complete.partition(|line| line.split(' ').nth(1) == Some("200"));
        (answered.len(), failed.into_iter().map(str::to_owned).collect())
    }
}
