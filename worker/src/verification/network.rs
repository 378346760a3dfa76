//! Checks of what the node reaches: name servers, managers, registries.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use warren_dns::{PORT, parse_nameservers};

use super::{Finding, failed, passed, warning};

/// How long a name server may take.
const DNS_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is asked.
const DNS_ATTEMPTS: u16 = 2;
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The registry of images without the name of one, and its host.
const HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");
/// The port of registries that name none, and that of those without TLS.
const REGISTRY_PORTS: [u16; 2] = [443, 80];

/// Sends packets to other nodes.
pub(super) trait PacketPath: Send + Sync + 'static {
    /// Sends packets of the largest size and waits for the answer. Blocks for some seconds.
    fn send(&self, from: Ipv4Addr, to: Ipv4Addr) -> Result<(), String>;
}

/// A registry that services use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registry {
    /// With its port if that is given.
    pub host: String,
    pub is_required: bool,
}

/// Asks the name server of the node, and those of the file `resolv_conf`.
pub(super) async fn check_dns(gateway: Option<Ipv4Addr>, resolv_conf: &str) -> Finding {
    let Some(gateway) = gateway else { return failed("the node has no address for its name server yet") };
    let own = SocketAddr::from((gateway, PORT));
    if let Err(why) = ask(own).await {
        return failed(format!("the name server of the node, {own}, does not answer: {why}"));
    }
    let text = tokio::fs::read(resolv_conf).await.unwrap_or_default();
    let upstreams = parse_nameservers(&String::from_utf8_lossy(&text));
    if upstreams.is_empty() {
        return warning(format!(
            "{resolv_conf} names no name server: tasks resolve only names of the cluster"
        ));
    }
    let answers = join_all(upstreams.iter().map(|server| ask(*server))).await;
    match answers.iter().any(Result::is_ok) {
        true => passed(""),
        false => warning(format!(
            "none of the name servers in {resolv_conf} answers: tasks resolve only names of the cluster"
        )),
    }
}

/// Any answer to a question counts.
async fn ask(server: SocketAddr) -> Result<(), String> {
    let local: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local).await.map_err(|error| error.to_string())?;
    socket.connect(server).await.map_err(|error| error.to_string())?;
    let mut failure = format!("no answer within {DNS_TIMEOUT:?}");
    for id in 1..=DNS_ATTEMPTS {
        socket.send(&question(id)).await.map_err(|error| error.to_string())?;
        // An answer to an earlier question may be late.
        let is_answer =
            |answer: &[u8]| answer.len() >= 12 && (1..=id).any(|asked| answer[..2] == asked.to_be_bytes());
        let answered = async {
            let mut buffer = [0; 512];
            loop {
                let length = socket.recv(&mut buffer).await?;
                if is_answer(&buffer[..length]) {
                    return Ok::<_, std::io::Error>(());
                }
            }
        };
        match timeout(DNS_TIMEOUT, answered).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => failure = error.to_string(),
            Err(_) => {}
        }
    }
    Err(failure)
}

/// A question for the name servers of the root (RFC 1035): header, the root name, NS, IN.
fn question(id: u16) -> [u8; 17] {
    let [high, low] = id.to_be_bytes();
    [high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1]
}

/// Connects to the managers; fails when most cannot be reached.
pub(super) async fn check_managers(managers: Vec<String>) -> Finding {
    let connections = join_all(managers.iter().map(|address| connect(address))).await;
    let missing = managers
        .iter()
        .zip(connections)
        .filter_map(|(address, connected)| connected.err().map(|why| format!("{address}: {why}")));
    let missing: Vec<String> = missing.collect();
    match (missing.len(), managers.len()) {
        (0, all) => passed(format!("{all} of {all} managers reached")),
        (few, all) if few * 2 <= all => warning(missing.join("; ")),
        _ => failed(missing.join("; ")),
    }
}

/// Connects to the registries.
pub(super) async fn check_registries(registries: &[Registry]) -> Finding {
    if registries.is_empty() {
        return passed("no service uses one");
    }
    let reached = join_all(registries.iter().map(|registry| reach(&registry.host))).await;
    let (mut missing, mut is_required) = (Vec::new(), false);
    for (Registry { host, is_required: required }, reached) in registries.iter().zip(reached) {
        if let Err(why) = reached {
            missing.push(format!("{host}: {why}"));
            is_required |= required;
        }
    }
    match (missing.is_empty(), is_required) {
        (true, _) => passed(""),
        (false, true) => failed(missing.join("; ")),
        (false, false) => warning(missing.join("; ")),
    }
}

async fn reach(registry: &str) -> Result<(), String> {
    let host = if registry == HUB.0 { HUB.1 } else { registry };
    if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        return connect(host).await;
    }
    let ports = REGISTRY_PORTS.map(|port| format!("{host}:{port}"));
    let [first, second] = ports.each_ref().map(|address| connect(address));
    let (first, second) = tokio::join!(first, second);
    if second.is_ok() { Ok(()) } else { first }
}

async fn connect(address: &str) -> Result<(), String> {
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use warren_types::NodeCheckOutcome::{Failed, Passed, Warning};

    use super::*;

    #[tokio::test]
    async fn managers_fail_when_most_cannot_be_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap().to_string();
        let closed = "127.0.0.1:1".to_owned();
        for (managers, expected) in [
            (vec![open.clone()], Passed),
            (vec![open.clone(), closed.clone()], Warning),
            (vec![open.clone(), closed.clone(), closed.clone()], Failed),
            (vec![closed.clone()], Failed),
        ] {
            let (outcome, message) = check_managers(managers.clone()).await;
            assert_eq!(outcome, expected, "{managers:?}: {message}");
            assert_eq!(message.contains(&closed), expected != Passed, "{message}");
        }
    }

    #[tokio::test]
    async fn required_registry_that_is_not_reached_fails() {
        let registry = |is_required| Registry { host: "127.0.0.1:1".into(), is_required };
        assert_eq!(check_registries(&[]).await.0, Passed);
        assert_eq!(check_registries(&[registry(false)]).await.0, Warning);
        let (outcome, message) = check_registries(&[registry(false), registry(true)]).await;
        assert!(outcome == Failed && message.contains("127.0.0.1:1: "), "{message}");
    }

    #[tokio::test]
    async fn any_answer_of_a_name_server_counts() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let answer = async {
            let mut buffer = [0; 512];
            let (length, from) = server.recv_from(&mut buffer).await.unwrap();
            assert_eq!(buffer[..length], question(1));
            server.send_to(&buffer[..length], from).await.unwrap();
        };
        let (asked, ()) = tokio::join!(ask(address), answer);
        assert_eq!(asked, Ok(()));
        drop(server);
        assert!(ask(address).await.unwrap_err().contains("refused"));
    }
}
