//! The networks and the DNS settings of a task.

use warren_types::{DnsLabel, NetworkAttachment, NetworkName, TaskNetworkMode, Violations};

use crate::args::value::NetworkChoice;

/// Disconnects from networks and removes names.
pub fn remove(mode: &mut TaskNetworkMode, networks: &[NetworkName], aliases: &[DnsLabel]) {
    let TaskNetworkMode::Networks(attachments) = mode else { return };
    attachments.retain(|attachment| !networks.contains(&attachment.network));
    attachments.iter_mut().for_each(|attachment| attachment.aliases.retain(|alias| !aliases.contains(alias)));
}

/// Connects to networks, in addition to those of `mode`, and adds names. A network that `mode` has gets the new names.
pub fn add(
    mode: &mut TaskNetworkMode,
    networks: &[NetworkChoice],
    aliases: &[DnsLabel],
    wrong: &mut Violations,
) {
    let path = "spec.task.network";
    match networks {
        [] => {}
        [NetworkChoice::Host] => *mode = TaskNetworkMode::Host,
        [NetworkChoice::None] => *mode = TaskNetworkMode::None,
        networks => {
            let mut attachments = match std::mem::take(mode) {
                TaskNetworkMode::Networks(attachments) => attachments,
                TaskNetworkMode::Host | TaskNetworkMode::None => Vec::new(),
            };
            for choice in networks {
                match choice {
                    NetworkChoice::Attachment(attachment) => attach(&mut attachments, attachment),
                    NetworkChoice::Host => wrong.add(path, "host cannot be combined with other networks"),
                    NetworkChoice::None => wrong.add(path, "none cannot be combined with other networks"),
                }
            }
            *mode = TaskNetworkMode::Networks(attachments);
        }
    }
    match mode {
        TaskNetworkMode::Networks(attachments) => {
            attachments.iter_mut().for_each(|attachment| attachment.aliases.extend(aliases.iter().cloned()));
        }
        TaskNetworkMode::Host | TaskNetworkMode::None if aliases.is_empty() => {}
        TaskNetworkMode::Host | TaskNetworkMode::None => {
            wrong.add(path, "a task without an address of its own has no names; leave out --alias");
        }
    }
}

fn attach(attachments: &mut Vec<NetworkAttachment>, new: &NetworkAttachment) {
    match attachments.iter_mut().find(|known| known.network == new.network) {
        Some(known) => known.aliases.extend(new.aliases.iter().cloned()),
        None => attachments.push(new.clone()),
    }
}
