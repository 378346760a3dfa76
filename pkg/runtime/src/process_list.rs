//! The processes of a container, from `/proc` of the node: see proc(5).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `/proc` counts in 1/100 seconds on every architecture.
const TICKS_PER_SECOND: u64 = 100;
/// Processes in a list; those with higher ids are left out.
const MAX_PROCESSES: usize = 1000;
/// A container may give a process megabytes of arguments.
const MAX_COMMAND_BYTES: u64 = 1024;

/// A process of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerProcess {
    /// On the node.
    pub pid: u32,
    /// On the node.
    pub parent_pid: u32,
    /// Effective user on the node.
    pub uid: u32,
    /// To 1/100 of a second.
    pub started_at: SystemTime,
    /// In user and kernel mode.
    pub cpu: Duration,
    /// Resident memory.
    pub resident_bytes: u64,
    /// The arguments with spaces between; the name in brackets if it has none.
    pub command: String,
}

/// Those of the processes that still run, by pid. `proc` is where procfs is mounted.
pub(crate) fn read(pids: &BTreeSet<u32>, proc: &Path) -> Vec<ContainerProcess> {
    let boot = fs::read_to_string(proc.join("stat")).ok().and_then(|text| boot_time(&text));
    let boot = boot.unwrap_or(UNIX_EPOCH);
    pids.iter()
        .take(MAX_PROCESSES)
        .filter_map(|pid| process(*pid, &proc.join(pid.to_string()), boot))
        .collect()
}

fn boot_time(stat: &str) -> Option<SystemTime> {
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    Some(UNIX_EPOCH + Duration::from_secs(seconds))
}

fn process(pid: u32, dir: &Path, boot: SystemTime) -> Option<ContainerProcess> {
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    // The name is in parentheses, and may contain anything.
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |place: usize| -> Option<u64> { fields.get(place)?.parse().ok() };
    let ticks = |count: u64| Duration::from_millis(count.saturating_mul(1000 / TICKS_PER_SECOND));
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let line =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    // Processes of the kernel have no memory of their own.
    let resident: Option<u64> = line("VmRSS:").and_then(|mut words| words.next()?.parse().ok());
    let mut arguments = Vec::new();
    let file = File::open(dir.join("cmdline")).ok()?;
    file.take(MAX_COMMAND_BYTES).read_to_end(&mut arguments).ok()?;
    let arguments = String::from_utf8_lossy(&arguments);
    let command = arguments.trim_end_matches('\0').replace('\0', " ");
    Some(ContainerProcess {
        pid,
        parent_pid: u32::try_from(number(1)?).ok()?,
        uid: line("Uid:")?.nth(1)?.parse().ok()?,
        started_at: boot + ticks(number(19)?),
        cpu: ticks(number(11)?.saturating_add(number(12)?)),
        resident_bytes: resident.unwrap_or_default().saturating_mul(1024),
        command: if command.is_empty() { format!("[{name}]") } else { command },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_process_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("stat", "cpu 1 2 3\nbtime 1000\nprocesses 9\n");
        let rest = "S 5 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 2500 8192 3 18446744073709551615";
        put("7/stat", &format!("7 (a) b) {rest}"));
        put("7/status", "Name:\ta\nUid:\t1000\t1001\t1000\t1000\nVmRSS:\t      12 kB\n");
        put("7/cmdline", "sh\0-c\0sleep 1\0");
        put("8/stat", &format!("8 (worker) {rest}"));
        put("8/status", "Uid:\t0\t0\t0\t0\n");
        put("8/cmdline", "");
        put("9/stat", "damaged");
        let found = read(&BTreeSet::from([7, 8, 9, 10]), dir.path());
        let process = ContainerProcess {
            pid: 7,
            parent_pid: 5,
            uid: 1001,
            started_at: UNIX_EPOCH + Duration::from_secs(1025),
            cpu: Duration::from_secs(2),
            resident_bytes: 12 << 10,
            command: "sh -c sleep 1".to_owned(),
        };
        let (uid, resident_bytes, command) = (0, 0, "[worker]".to_owned());
        let other = ContainerProcess { pid: 8, uid, resident_bytes, command, ..process.clone() };
        assert_eq!(found, [process, other]);
    }
}
