//! `warren system check`.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::process::ExitCode;

use warren_daemon::MetricsListen;
use warren_network::{DEFAULT_VXLAN_PORT, DEFAULT_WIREGUARD_PORT, HostPort, TransportProtocol};
use warren_types::{DataPlane, NodeCheckOutcome};
use warren_worker::system_check::{self, NeededPort, SystemCheckOptions, SystemCheckResult};

use crate::args::{GlobalArgs, OutputFormat, SystemCheckArgs};
use crate::failure::{CommandError, ExitKind};
use crate::node::StoredNode;
use crate::output;
use crate::view::verification::{CheckView, report};

/// Runs all checks and prints them; the exit code says whether one failed.
pub async fn run(global: &GlobalArgs, args: SystemCheckArgs) -> Result<ExitCode, CommandError> {
    let results = system_check::check(options(args)?).await;
    let count = |outcome| results.iter().filter(|result| result.outcome == outcome).count();
    let [passed, warnings, failed] = NodeCheckOutcome::ALL.map(count);
    let views: Vec<CheckView> = results.into_iter().map(view).collect();
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => {
            let status = if failed == 0 { "passed" } else { "failed" };
            let counts = format!("{passed} passed, {warnings} warnings, {failed} failed");
            output::print(&format!("{}Status: {status} ({counts})\n", report(&views)))?;
        }
        OutputFormat::Json | OutputFormat::Yaml => output::print_document(global.output, &views)?,
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(ExitKind::Failed as u8) })
}

fn view(result: SystemCheckResult) -> CheckView {
    let SystemCheckResult { name, outcome, message, hint } = result;
    CheckView { name, outcome, message, hint }
}

/// What the command line and the stored settings of the node ask for; without either, a hybrid node.
fn options(args: SystemCheckArgs) -> Result<SystemCheckOptions, CommandError> {
    let SystemCheckArgs { dirs, metrics, manager_only, listen, .. } = &args;
    let stored = StoredNode::load(&dirs.data_dir, "this machine was not checked")?;
    let data_dir = dirs.data_dir.clone();
    let section = stored.as_ref().map(|stored| stored.node.clone()).unwrap_or_default();
    let section = warren_daemon::NodeSection::from_args(dirs, *metrics).or(section);
    let manager = match &stored {
        Some(stored) => stored.manager.clone(),
        None => Some(warren_manager::process::ManagerFlags::default()),
    };
    let runs_tasks = !manager_only && stored.as_ref().is_none_or(|stored| stored.worker.is_some());
    let given = warren_worker::process::WorkerFlags {
        containerd_socket: args.containerd_socket.clone(),
        runtime: args.runtime.clone(),
        vxlan_port: args.vxlan_port,
        wireguard_port: args.wireguard_port,
        ..Default::default()
    };
    let worker = given.or(stored.as_ref().and_then(|stored| stored.worker.clone()).unwrap_or_default());
    let mut ports = Vec::new();
    let tcp =
        |purpose, (ip, port): (IpAddr, u16), flag| needed(purpose, ip, port, TransportProtocol::Tcp, flag);
    if let Some(manager) = &manager {
        let address = listen.or(manager.listen).unwrap_or(warren_manager::process::DEFAULT_LISTEN);
        ports.extend(tcp("managers and API", (address.ip(), address.port()), "--listen"));
    }
    if let MetricsListen::Address(address) = section.metrics_listen() {
        ports.extend(tcp("metrics", (address.ip(), address.port()), "--metrics-listen"));
    }
    if runs_tasks {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let udp = |purpose, port, flag| needed(purpose, any, port, TransportProtocol::Udp, flag);
        let port = worker.vxlan_port.unwrap_or(DEFAULT_VXLAN_PORT);
        ports.extend(udp("packets between nodes", port, "--vxlan-port"));
        let is_encrypted =
            manager.as_ref().is_some_and(|manager| manager.data_plane == Some(DataPlane::Wireguard));
        let port = worker.wireguard_port.or(is_encrypted.then_some(DEFAULT_WIREGUARD_PORT));
        ports.extend(port.and_then(|port| udp("encrypted packets between nodes", port, "--wireguard-port")));
    }
    Ok(SystemCheckOptions {
        node: crate::node::running(&data_dir),
        run_dir: section.run_dir(),
        data_dir,
        worker: runs_tasks.then_some(worker),
        ports,
    })
}

/// Port 0 is chosen by the kernel. An address of version 6 is checked as all addresses.
fn needed(
    purpose: &'static str,
    ip: IpAddr,
    port: u16,
    protocol: TransportProtocol,
    flag: &'static str,
) -> Option<NeededPort> {
    let ip = match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    };
    Some(NeededPort { purpose, at: HostPort::new(ip, NonZeroU16::new(port)?, protocol), flag })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::args::{Cli, CliCommand, SystemCommand};

    /// What is checked on a machine with this text in `node.toml`.
    fn asked(node_toml: Option<&str>, flags: &[&str]) -> (Vec<String>, SystemCheckOptions) {
        let dir = tempfile::tempdir().unwrap();
        if let Some(text) = node_toml {
            std::fs::write(dir.path().join("node.toml"), text).unwrap();
        }
        let data_dir = dir.path().to_str().unwrap();
        let words = ["warren", "system", "check", "--data-dir", data_dir];
        let cli = Cli::try_parse_from(words.iter().chain(flags)).unwrap();
        let CliCommand::System(SystemCommand::Check(args)) = cli.command else { panic!("another command") };
        let options = options(args).unwrap();
        (options.ports.iter().map(|port| port.at.to_string()).collect(), options)
    }

    #[test]
    fn stored_settings_and_flags_select_what_is_checked() {
        let check = |node_toml, flags: &[&str], ports: &[&str], runs_tasks: bool| {
            let (found, options) = asked(node_toml, flags);
            assert_eq!(found, ports);
            assert_eq!(options.worker.is_some(), runs_tasks, "{flags:?}");
        };
        check(None, &[], &["8080/tcp", "127.0.0.1:9090/tcp", "4789/udp"], true);
        check(None, &["--manager-only", "--metrics-listen", "none"], &["8080/tcp"], false);
        check(
            None,
            &["--listen", "[::]:81", "--metrics-listen", "127.0.0.1:0"],
            &["81/tcp", "4789/udp"],
            true,
        );
        let hybrid = "[node]\nmetrics-listen = \"none\"\n[manager]\nlisten = \"127.0.0.1:82\"\n\
                      data-plane = \"wireguard\"\n[worker]\nvxlan-port = 8472\n";
        check(Some(hybrid), &[], &["127.0.0.1:82/tcp", "8472/udp", "51820/udp"], true);
        let worker = "[node]\n[joined]\nmanagers = [\"m:8080\"]\n[worker]\nwireguard-port = 5\n";
        check(Some(worker), &["--vxlan-port", "6"], &["127.0.0.1:9090/tcp", "6/udp", "5/udp"], true);
        check(Some("[node]\n[manager]\n"), &[], &["8080/tcp", "127.0.0.1:9090/tcp"], false);
        let (_, options) = asked(Some(hybrid), &["--runtime", "crun", "--run-dir", "/r"]);
        assert_eq!(options.run_dir, Path::new("/r"));
        assert_eq!(options.worker.unwrap().runtime.as_deref(), Some("crun"));
    }
}
