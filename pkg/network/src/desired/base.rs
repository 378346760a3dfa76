//! The chains that follow from the settings of the node and its peers alone: protection, forwarding, source
//! addresses.

use std::collections::BTreeMap;

use super::Chains;
use super::ingress::{ENTRY_MASK, ENTRY_SHIFT, NUMBER_MASK, entry_number};
use super::tree::build_address_tree;
use crate::model::{NodeNetwork, NodeNetworkSettings, PeerNode};
use crate::names::{OVERLAY_DEVICE, PROBE_MARK, WIREGUARD_DEVICE};

/// Collects chains by name.
fn chains<const N: usize>(list: [(&str, Vec<String>); N]) -> Chains {
    list.into_iter().map(|(name, rules)| (name.to_owned(), rules)).collect()
}

fn text(rules: &[&str]) -> Vec<String> {
    rules.iter().map(|rule| (*rule).to_owned()).collect()
}

/// Matches packets of the tunnel on the underlay.
fn tunnel(settings: &NodeNetworkSettings) -> Option<String> {
    settings.overlay().map(|overlay| format!("-p udp -m udp --dport {}", overlay.port()))
}

/// Matches packets of peers. Without a tunnel, [`raw`] has dropped those of other hosts.
fn from_peers(settings: &NodeNetworkSettings) -> Vec<String> {
    on_way_to_peers(settings, "-s", "-i")
}

/// Matches packets to peers.
fn to_peers(settings: &NodeNetworkSettings) -> Vec<String> {
    on_way_to_peers(settings, "-d", "-o")
}

fn on_way_to_peers(settings: &NodeNetworkSettings, address: &str, direction: &str) -> Vec<String> {
    if let Some(direct) = settings.direct_routes() {
        let device = direct.device();
        return settings
            .cluster()
            .iter()
            .map(|range| format!("{address} {range} {direction} {device}"))
            .collect();
    }
    settings.overlay().iter().map(|_| format!("{direction} {OVERLAY_DEVICE}")).collect()
}

/// Who may send what from where.
pub(super) fn raw(settings: &NodeNetworkSettings) -> Chains {
    let mut all = vec!["-i wc+ -g WARREN-RAW-C".to_owned()];
    let mut tasks = vec![
        // A task may use only its own source address: the reverse route must be its link.
        "-m rpfilter --invert -j DROP".to_owned(),
        // route_localnet on the task's link would open the node's loopback to it.
        "-d 127.0.0.0/8 -j DROP".to_owned(),
    ];
    let mut output = vec![format!("-m mark --mark {PROBE_MARK:#x} -j CT --notrack")];
    let mut others = Chains::new();
    if let Some(tunnel) = tunnel(settings) {
        all.push(format!("-i {OVERLAY_DEVICE} -g WARREN-RAW-VX"));
        // Packets of the tunnel from a task would be masqueraded and look like those of this node.
        tasks.push(format!("{tunnel} -j DROP"));
        others = chains([
            ("WARREN-RAW-VX", from_overlay(settings)),
            ("WARREN-RAW-ZONE", text(&["-j CT --zone-orig mark"])),
        ]);
        output.push(format!("{tunnel} -j CT --notrack"));
    }
    all.push("-i lo -j RETURN".to_owned());
    all.extend(
        tunnel(settings).map(|tunnel| format!("{tunnel} -m addrtype --dst-type LOCAL -j CT --notrack")),
    );
    if settings.direct_routes().is_some() {
        // A peer sends from an address to which its route leads, and only to tasks of this node and its gateway.
        let peers = from_peers(settings).into_iter();
        all.extend(peers.map(|packet| format!("{packet} -m rpfilter -g WARREN-RAW-PEER")));
        let mut rules: Vec<String> =
            settings.blocks().iter().map(|block| format!("-d {block} -j RETURN")).collect();
        rules.push("-j DROP".to_owned());
        others = chains([("WARREN-RAW-PEER", rules)]);
    }
    // No host on the underlay may send from, or to, the cluster's addresses.
    for range in settings.cluster() {
        all.push(format!("-s {range} -j DROP"));
        all.push(format!("-d {range} -j DROP"));
    }
    // A port published only on 127.0.0.1 must not be reachable from the LAN: translation precedes the
    // kernel's own check for such martian destinations.
    all.push("-d 127.0.0.0/8 -j DROP".to_owned());
    others.extend(chains([("WARREN-RAW", all), ("WARREN-RAW-C", tasks), ("WARREN-RAW-OUT", output)]));
    others
}

/// Peers send from their own tasks and gateways, never from addresses of this node, and from clients outside of the
/// cluster only to tasks of this node. Their connections are in a zone for each entry node: the same client may reach
/// one task through several.
fn from_overlay(settings: &NodeNetworkSettings) -> Vec<String> {
    let mut rules = text(&["-s 127.0.0.0/8 -j DROP", "-d 127.0.0.0/8 -j DROP"]);
    rules.extend(settings.blocks().iter().map(|block| format!("-s {block} -j DROP")));
    rules.extend(settings.cluster().iter().map(|range| format!("-s {range} -j RETURN")));
    rules.extend(settings.blocks().iter().map(|block| format!("-d {block} -g WARREN-RAW-ZONE")));
    rules.push("-j DROP".to_owned());
    rules
}

/// The entry node of each connection, see [`super::ingress`]. Other marks neither enter nor leave: that of a packet
/// into the tunnel becomes its group policy id, and the kernel looks up the route of the outer packet with it.
pub(super) fn mangle(settings: &NodeNetworkSettings) -> Chains {
    let Some(overlay) = settings.overlay() else {
        return Chains::new();
    };
    let restore = |bits| format!("-j CONNMARK --restore-mark --nfmask {bits:#x} --ctmask {ENTRY_MASK:#x}");
    let answer = format!("-m connmark ! --mark 0x0/{ENTRY_MASK:#x} {}", restore(ENTRY_MASK));
    let tasks = || settings.cluster().iter().map(|range| format!("-s {range} -j RETURN"));
    let before_routing = vec![
        format!("-i wc+ {answer}"),
        format!("-i {OVERLAY_DEVICE} -m conntrack --ctstate NEW -j WARREN-ENTRY"),
        format!("-i {OVERLAY_DEVICE} {}", restore(u32::MAX)),
    ];
    let mut entry: Vec<String> = tasks().collect();
    let save = format!("--save-mark --nfmask {NUMBER_MASK:#x} --ctmask {ENTRY_MASK:#x}");
    entry.push(format!("-j CONNMARK {save} --left-shift-mark {ENTRY_SHIFT}"));
    // With the mark of a peer, the way back to the client is the tunnel.
    entry.extend([restore(ENTRY_MASK), "-m rpfilter --validmark --invert -j DROP".to_owned()]);
    let mut exit = text(&["-j MARK --set-xmark 0x0/0xffffffff"]);
    exit.extend(tasks());
    exit.extend(entry_number(overlay).map(|own| format!("-j MARK --set-xmark {own:#x}/0xffffffff")));
    chains([
        ("WARREN-PRE", before_routing),
        ("WARREN-ENTRY", entry),
        // Errors that the node sends for a connection.
        ("WARREN-OUT", vec![answer]),
        ("WARREN-POST", vec![format!("-o {OVERLAY_DEVICE} -g WARREN-EXIT")]),
        ("WARREN-EXIT", exit),
    ])
}

/// What is forwarded, and what reaches the node itself.
pub(super) fn filter(node: &NodeNetwork) -> Chains {
    let settings = &node.settings;
    let mut all = chains([
        ("WARREN-FWD", forward(settings)),
        // Rules of users come first, as in DOCKER-USER.
        ("WARREN-PUB", text(&["-j WARREN-USER", "-j ACCEPT"])),
        ("WARREN-NODE", to_node(settings)),
    ]);
    let mut input = Vec::new();
    // Suppresses ICMP redirects for connections of a task to itself by a published port.
    let mut output = text(&["-o wc+ -p icmp -m icmp --icmp-type 5 -j DROP"]);
    // While the agent restarts, nobody answers DNS queries. A resolver that is told so at once has no attempt left when
    // the agent is back; one that hears nothing waits and asks again.
    output.push(format!(
        "-o wc+ -p icmp -m icmp --icmp-type 3/3 -m conntrack --ctstate RELATED --ctproto 17 --ctorigdst {} \
         --ctorigdstport 53 -j DROP",
        settings.gateway()
    ));
    output.extend(reject_virtual(settings));
    if let Some(tunnel) = tunnel(settings) {
        match settings.wireguard() {
            None => input.push(format!("{tunnel} -j WARREN-VXIN")),
            Some(wireguard) => {
                input.push(format!("-i {WIREGUARD_DEVICE} {tunnel} -j WARREN-VXIN"));
                // A packet that is not encrypted has taken another route than the one that is wanted.
                output.push(format!("! -o {WIREGUARD_DEVICE} {tunnel} -j DROP"));
                // A default-drop firewall of the host need not know the port.
                input.push(format!("-p udp -m udp --dport {} -j WARREN-VXIN", wireguard.port));
            }
        }
        input.push(format!("{tunnel} -j DROP"));
        let peers: BTreeMap<_, _> =
            node.peers().map(|(_, peer)| (peer.underlay, "-j ACCEPT".to_owned())).collect();
        build_address_tree(&mut all, "WARREN-VXIN", "-s", &peers);
    }
    // A published port without a ready task is rejected, because a default-drop firewall of the host would
    // let the client hang.
    input.push("-m conntrack --ctstate NEW -j WARREN-CLOSED".to_owned());
    input.push("-i wc+ -g WARREN-NODE".to_owned());
    for packet in from_peers(settings) {
        input.push(format!("{packet} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"));
        input.push(format!("{packet} -p icmp -m icmp --icmp-type 8 -j ACCEPT"));
        input.push(format!("{packet} -j DROP"));
    }
    all.extend(chains([("WARREN-IN", input), ("WARREN-OUT", output)]));
    all
}

/// Networks are separated before these rules, see [`super::Isolation`].
fn forward(settings: &NodeNetworkSettings) -> Vec<String> {
    let mut rules = Vec::new();
    if settings.overlay().is_some() {
        // The entry node is gone, which would translate the source of these answers.
        rules.push(format!("-i wc+ ! -o {OVERLAY_DEVICE} -m connmark ! --mark 0x0/{ENTRY_MASK:#x} -j DROP"));
    }
    rules.extend(text(&[
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        // Packets unknown to connection tracking are not translated and would expose task addresses
        // outside.
        "-m conntrack --ctstate INVALID -j DROP",
    ]));
    rules.extend(reject_virtual(settings));
    let by_service = |range| format!("-i wc+ -m conntrack --ctstate DNAT --ctorigdst {range} -j ACCEPT");
    rules.extend(settings.virtual_ranges().map(by_service));
    rules.push("-m conntrack --ctstate DNAT -g WARREN-PUB".to_owned());
    rules.push("-i wc+ -j ACCEPT".to_owned());
    rules.extend(from_peers(settings).into_iter().map(|packet| format!("{packet} -o wc+ -j ACCEPT")));
    rules.push("-j DROP".to_owned());
    rules
}

/// A virtual address that was not translated has no backend.
fn reject_virtual(settings: &NodeNetworkSettings) -> impl Iterator<Item = String> + '_ {
    settings.virtual_ranges().flat_map(|range| {
        [
            format!("-d {range} -p tcp -j REJECT --reject-with tcp-reset"),
            format!("-d {range} -j REJECT --reject-with icmp-port-unreachable"),
        ]
    })
}

/// What tasks may reach on the node itself, by any of its addresses.
fn to_node(settings: &NodeNetworkSettings) -> Vec<String> {
    let gateway = settings.gateway();
    let mut rules = text(&[
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-m conntrack --ctstate INVALID -j DROP",
        "-p icmp -m icmp --icmp-type 8 -j ACCEPT",
    ]);
    for protocol in ["udp", "tcp"] {
        rules.push(format!("-d {gateway}/32 -p {protocol} -m {protocol} --dport 53 -j ACCEPT"));
    }
    for range in settings.allowed_ports() {
        let protocol = range.protocol;
        rules.push(format!("-p {protocol} -m {protocol} --dport {}:{} -j ACCEPT", range.first, range.last));
    }
    rules.push("-p tcp -j REJECT --reject-with tcp-reset".to_owned());
    rules.push("-j REJECT --reject-with icmp-port-unreachable".to_owned());
    rules
}

/// Translation of destinations and sources.
pub(super) fn nat(node: &NodeNetwork) -> Chains {
    let settings = &node.settings;
    let gateway = settings.gateway();
    let virtually: Vec<String> =
        settings.virtual_ranges().map(|range| format!("-d {range} -j WARREN-VIP")).collect();
    // A published DNS server does not get the queries for that of the node.
    let own = ["tcp", "udp"]
        .map(|protocol| format!("-d {gateway}/32 -p {protocol} -m {protocol} --dport 53 -j RETURN"));
    let virtually: Vec<String> = virtually.into_iter().chain(own).collect();
    let mut before_routing = virtually.clone();
    let ports = "-m addrtype --dst-type LOCAL -j WARREN-PORTS";
    // Peers reach published ports by the addresses of the machine.
    before_routing.extend(from_peers(settings).into_iter().map(|packet| format!("{packet} -j RETURN")));
    before_routing.push(ports.to_owned());
    let mut output = virtually;
    output.push(ports.to_owned());

    let mut post: Vec<String> = Vec::new();
    for block in settings.blocks() {
        post.push(format!("-s {block} -d {block} -m conntrack --ctstate DNAT -j WARREN-HAIRPIN"));
    }
    // A connection from the node's own 127.0.0.1 needs a source address that the task can answer.
    post.push(format!("-s 127.0.0.0/8 -o wc+ -j SNAT --to-source {gateway}"));
    let mut all = Chains::new();
    let to_peers = to_peers(settings);
    if !to_peers.is_empty() {
        post.extend(to_peers.into_iter().map(|packet| format!("{packet} -j WARREN-PEER")));
        // A process of the node that is bound to another address: answers to it would not come back the same
        // way.
        let mut rules: Vec<String> =
            settings.cluster().iter().map(|range| format!("-s {range} -j RETURN")).collect();
        rules.push(format!("-m addrtype --src-type LOCAL -j SNAT --to-source {gateway}"));
        if settings.overlay().is_some() {
            // A peer is the client of an ingress port: it would drop packets from its own address that arrive.
            rules.push("-g WARREN-NODES".to_owned());
            let rule = |peer: &PeerNode| (peer.underlay, format!("-j SNAT --to-source {gateway}"));
            let nodes: BTreeMap<_, _> = node.peers().map(|(_, peer)| rule(peer)).collect();
            build_address_tree(&mut all, "WARREN-NODES", "-s", &nodes);
        }
        all.extend(chains([("WARREN-PEER", rules)]));
    }
    post.extend(settings.blocks().iter().map(|block| format!("-s {block} -j WARREN-MASQ")));
    let mut masquerade: Vec<String> =
        settings.cluster().iter().map(|range| format!("-d {range} -j RETURN")).collect();
    masquerade.push("-j MASQUERADE --random-fully".to_owned());
    all.extend(chains([
        ("WARREN-PRE", before_routing),
        ("WARREN-OUT", output),
        ("WARREN-POST", post),
        ("WARREN-MASQ", masquerade),
    ]));
    all
}
