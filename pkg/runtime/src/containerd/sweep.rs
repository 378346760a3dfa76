//! What a killed agent or containerd can leave behind, found by comparing what exists with what is recorded.
//!
//! Whatever may be in the making right now has a record first. So existence is looked at before the records:
//! what is found without a record then was not in the making.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use containerd_client::services::v1::Container;

use super::{Shared, record};
use crate::Result;
use crate::container::{ContainerId, Swept};
use crate::pidfd::Pidfd;
use crate::signal::Signal;
use crate::spec::cgroup_path;

const SHIM: &str = "containerd-shim-runc-v2";

impl Shared {
    pub(super) async fn sweep_strays(&self) -> Result<Swept> {
        let parent = Path::new(&self.settings.cgroup_parent);
        let cgroups = self.cgroups.children(parent);
        let shims = shims(self.connection.socket(), self.connection.namespace());
        let snapshots = self.list_snapshots().await?;
        let tasks = self.task_ids().await?;
        let records = self.records().await?.into_iter();
        let (stand_ins, recorded): (Vec<_>, Vec<_>) =
            records.partition(|record| record.labels.contains_key(record::STAND_IN));
        let ids = |records: Vec<Container>| records.into_iter().map(|record| record.id).collect();
        let (stand_ins, recorded): (BTreeSet<String>, BTreeSet<String>) = (ids(stand_ins), ids(recorded));

        let mut swept = Swept::default();
        // A sweep that was cut short may have left the record that it made for an orphan.
        for id in tasks.union(&stand_ins).filter(|id| !recorded.contains(*id)) {
            let Ok(id) = ContainerId::parse(id) else { continue };
            self.end_orphan(&id).await?;
            swept.tasks.push(id.to_string());
        }
        for shim in shims {
            let known = recorded.contains(&shim.id) || tasks.contains(&shim.id);
            if !known && shim.pidfd.send(Signal::KILL).unwrap_or(false) {
                swept.shims.push(shim.id);
            }
        }
        for snapshot in snapshots {
            let owner = snapshot.labels.get(record::CONTAINER);
            if owner.is_some_and(|owner| !recorded.contains(owner))
                && self.remove_snapshot(&snapshot.name).await?
            {
                swept.snapshots.push(snapshot.name);
            }
        }
        for name in cgroups {
            let Ok(id) = ContainerId::parse(&name) else { continue };
            let path = cgroup_path(&self.settings.cgroup_parent, &id);
            if !recorded.contains(&name) && self.cgroups.remove_empty(&path) {
                swept.cgroups.push(path.display().to_string());
            }
        }
        Ok(swept)
    }
}

impl Shared {
    /// Kills the supervisor of a container, and with it the process; containerd then clears what is left. For one
    /// that does not answer any more.
    pub(super) fn end_supervisor(&self, id: &ContainerId) {
        let shims = shims(self.connection.socket(), self.connection.namespace());
        for shim in shims.iter().filter(|shim| shim.id == id.as_str()) {
            let ended = shim.pidfd.send(Signal::KILL);
            tracing::warn!(%id, ?ended, "a container's supervisor did not answer and was killed");
        }
    }
}

struct Shim {
    id: String,
    pidfd: Pidfd,
}

/// The supervisors of one containerd's namespace, by their command lines.
fn shims(socket: &Path, namespace: &str) -> Vec<Shim> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        // As with any handle: what is read after it was opened is about its process, if that is alive
        // afterwards.
        let pidfd = Pidfd::open(pid).ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
        let id = supervised(&words, socket, namespace)?;
        pidfd.is_alive().then_some(Shim { id, pidfd })
    })
    .collect()
}

/// The container id on the command line of a supervisor that serves `namespace` of the containerd at
/// `socket`. `... start` and `... delete` are short-lived errands of containerd's and not meant.
fn supervised(words: &[&[u8]], socket: &Path, namespace: &str) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let name = Path::new(std::ffi::OsStr::from_bytes(program)).file_name()?;
    if name != SHIM || arguments.iter().any(|word| matches!(*word, b"start" | b"delete")) {
        return None;
    }
    let value = |flag: &str| {
        let at = arguments.iter().position(|word| *word == flag.as_bytes())?;
        std::str::from_utf8(arguments.get(at + 1)?).ok()
    };
    let same = |a: &Path, b: &Path| {
        a == b || fs::canonicalize(a).ok().is_some_and(|a| fs::canonicalize(b).ok() == Some(a))
    };
    let ours = value("-namespace")? == namespace && same(Path::new(value("-address")?), socket);
    ours.then(|| value("-id").map(str::to_owned)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_supervisors_are_recognised() {
        let check = |line: &str, want: Option<&str>| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let found = supervised(&words, Path::new("/run/x.sock"), "warren");
            assert_eq!(found.as_deref(), want, "{line}");
        };
        let shim = "/usr/bin/containerd-shim-runc-v2 -namespace warren -id a.1 -address /run/x.sock";
        check(shim, Some("a.1"));
        check(&format!("{shim} start"), None);
        check(&format!("{shim} delete"), None);
        check(&shim.replace("warren", "moby"), None);
        check(&shim.replace("/run/x.sock", "/run/y.sock"), None);
        check(&shim.replace("shim-runc-v2", "shim-other"), None);
        check("/usr/bin/containerd-shim-runc-v2 -namespace warren -id", None);
        check("bash", None);
    }
}
