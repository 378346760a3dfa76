//! Kernel resources: links, addresses, routes, rules and sockets of the node's network namespace; mounts,
//! cgroups and processes that carry its directory.

use std::path::Path;

use serde_json::Value;

use crate::netns::enter;
use crate::{cleanup, tool};

use super::{Inventory, LeakScope};

#[track_caller]
pub(super) fn list(site: &LeakScope<'_>, inventory: &mut Inventory) {
    inventory.add("links", links(site));
    let lines =
        |words: &[&str]| inside(site, words).lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let addresses = lines(&["ip", "-brief", "-4", "address"]);
    inventory.add("addresses", addresses.iter().map(|line| without_link_state(line)));
    let routes = lines(&["ip", "-4", "route", "show", "table", "all"]);
    inventory.add("routes", routes.iter().map(|line| without_link_state(line)));
    inventory.add("neighbours", lines(&["ip", "neigh", "show", "nud", "permanent"]));
    inventory.add("routing rules", lines(&["ip", "-4", "rule"]));
    inventory.add("iptables", iptables_lines(&inside(site, &["iptables-save"])));
    let tables = lines(&["nft", "list", "tables"]);
    inventory.add("nft tables", tables.into_iter().filter(|table| !belongs_to_iptables(table)));
    inventory.add("listening sockets", sockets(&inside(site, &["ss", "-Hlntu"])));
    inventory
        .add("mounts", cleanup::mounts(site.directory).into_iter().map(|path| path.display().to_string()));
    let cgroups = cleanup::cgroups(site.cgroup_pattern);
    inventory.add("cgroups", cgroups.into_iter().map(|path| path.display().to_string()));
    inventory.add("processes", processes(site));
    let states = cleanup::runc_states(site.directory);
    inventory.add("runc states", states.into_iter().map(|path| path.display().to_string()));
}

#[track_caller]
fn inside(site: &LeakScope<'_>, words: &[&str]) -> String {
    let mut command = enter(site.netns, words[0]);
    command.args(&words[1..]);
    match tool::stdout(command, tool::DEADLINE) {
        Ok(text) => text,
        Err(error) => panic!("{error}"),
    }
}

/// By type and name: `veth eth0`; links without a type (loopback) are listed by their link layer.
#[track_caller]
fn links(site: &LeakScope<'_>) -> Vec<String> {
    let text = inside(site, &["ip", "-details", "-json", "link", "show"]);
    let value: Value = serde_json::from_str(&text).expect("ip prints JSON when asked to");
    let links = value.as_array().expect("ip prints a list of links");
    let keyword = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    links
        .iter()
        .map(|link| {
            let kind = Some(&link["linkinfo"]["info_kind"]).filter(|kind| kind.is_string());
            format!("{} {}", keyword(kind.unwrap_or(&link["link_type"])), keyword(&link["ifname"]))
        })
        .collect()
}

/// Chains and rules with their table, without counters. A built-in chain with the policy ACCEPT is left out:
/// it appears when its table is first listed and never disappears.
fn iptables_lines(saved: &str) -> Vec<String> {
    let mut table = "?";
    let mut lines = Vec::new();
    for line in saved.lines() {
        match line.split_at_checked(1) {
            Some(("*", name)) => table = name,
            Some((":", chain)) if chain.contains(" ACCEPT ") => {}
            Some((":" | "-", _)) => {
                let line = line.split(" [").next().unwrap_or(line);
                lines.push(format!("{table} {line}"));
            }
            _ => {}
        }
    }
    lines
}

/// iptables on top of nf_tables keeps its tables there once used; iptables-save lists their contents.
fn belongs_to_iptables(table: &str) -> bool {
    let tables = ["filter", "nat", "mangle", "raw", "security"];
    table.strip_prefix("table ip ").is_some_and(|name| tables.contains(&name))
}

/// Protocol and local address; queue lengths change constantly.
fn sockets(listed: &str) -> Vec<String> {
    let fields = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|fields| fields.len() > 4).map(|fields| format!("{} {}", fields[0], fields[4])).collect()
}

/// The words of a line of `ip` that do not depend on whether the other end of a link is up already.
fn without_link_state(line: &str) -> String {
    let is_state = |word: &&str| matches!(*word, "UP" | "DOWN" | "UNKNOWN" | "LOWERLAYERDOWN" | "linkdown");
    line.split_whitespace().filter(|word| !is_state(word)).collect::<Vec<_>>().join(" ")
}

/// Shims, loggers, containers. The node and its containerd are not leftovers of a task.
fn processes(site: &LeakScope<'_>) -> Vec<String> {
    let program = |command: &str| {
        let first = command.split(' ').next().unwrap_or("").to_owned();
        Path::new(&first).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    cleanup::processes(site.directory)
        .into_iter()
        .map(|process| process.command)
        .filter(|command| !matches!(program(command).as_str(), "warren" | "containerd" | ""))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iptables_rules_lose_their_counters_and_keep_their_table() {
        let saved = "# Generated\n*nat\n:PREROUTING ACCEPT [12:345]\n:WARREN - [0:0]\n\
                     -A PREROUTING -j WARREN\nCOMMIT\n\
                     *filter\n:INPUT ACCEPT [1:2]\n:FORWARD DROP [0:0]\nCOMMIT\n# Completed\n";
        let lines = iptables_lines(saved);
        assert_eq!(lines, ["nat :WARREN -", "nat -A PREROUTING -j WARREN", "filter :FORWARD DROP"]);
    }

    #[test]
    fn sockets_are_protocol_and_address() {
        let listed =
            "tcp   LISTEN 0      4096   127.0.0.1:8080  0.0.0.0:*\nudp UNCONN 0 0 0.0.0.0:4789 0.0.0.0:*\n";
        assert_eq!(sockets(listed), ["tcp 127.0.0.1:8080", "udp 0.0.0.0:4789"]);
    }
}
