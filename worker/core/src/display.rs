//! Human-readable exits of processes, durations and times of day.

use std::time::Duration;

use warren_types::{Bytes, Signal, TaskExit, TaskSpec, Timestamp};

/// A process that was ended by a signal has the exit code 128 plus the signal's number (POSIX shells,
/// containerd).
const SIGNAL_EXIT_OFFSET: i32 = 128;

/// How an attempt ended. `None`: the process is lost and its exit status is unknown.
pub fn format_exit(exit: Option<TaskExit>, memory_limit: Option<Bytes>) -> String {
    let Some(TaskExit { code, out_of_memory }) = exit else {
        return "process lost without exit status (node restarted or shim killed)".into();
    };
    let text = match code.checked_sub(SIGNAL_EXIT_OFFSET).and_then(Signal::from_number) {
        Some(signal) => format!("killed by signal {} ({signal})", signal.number()),
        None => format!("exited with code {code}"),
    };
    match (out_of_memory, memory_limit) {
        (false, _) => text,
        (true, Some(limit)) => format!("ran out of memory (limit {limit}; raise limits.memory): {text}"),
        (true, None) => format!("ran out of memory (the node has no free memory): {text}"),
    }
}

/// A failure within this time of the start may be that of a program that cannot read its secrets.
const SECRETS_HINT_TIME: Duration = Duration::from_secs(10);

/// What to check after a process ended that had run for `ran`: programs that start as root and then change their user,
/// as many official images do, cannot read the secrets of the container's user.
pub fn exit_hint(spec: &TaskSpec, exit: Option<TaskExit>, ran: Duration) -> Option<String> {
    let failed = exit.is_some_and(|exit| exit.code != 0 && !exit.out_of_memory);
    let secret = spec.secrets.iter().find(|secret| secret.secret_mode() & 0o004 == 0)?;
    let (name, mode) = (&secret.source, secret.secret_mode());
    (failed && ran < SECRETS_HINT_TIME).then(|| {
        let user = match secret.uid {
            Some(uid) => format!("uid {uid}"),
            None => "the container's user".to_owned(),
        };
        format!(
            "if it could not read its secrets: {name} has mode {mode:04o} and belongs to {user}; a program that \
             changes its user needs --secret {name},mode=0444 or uid=N"
        )
    })
}

/// A duration, rounded for people: `850ms`, `12s`, `5m`.
pub fn format_duration(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        seconds @ 1..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds => format!("{}h", seconds / 3600),
    }
}

/// A size of files, rounded up for people: `850 B`, `2.3 GB`.
pub fn format_size(size: Bytes) -> String {
    let units = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    let Some((name, unit)) = units.into_iter().find(|(_, unit)| size.0 >= *unit) else {
        return format!("{} B", size.0);
    };
    let tenths = size.0.div_ceil(unit / 10);
    match tenths % 10 {
        0 => format!("{} {name}", tenths / 10),
        tenth => format!("{}.{tenth} {name}", tenths / 10),
    }
}

/// Time of day, for moments that are at most minutes away: `14:03:07 UTC`.
pub fn format_time_of_day(at: Timestamp) -> String {
    let seconds = at.0 / 1000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use warren_types::SecretObjectMount;

    use super::*;

    #[track_caller]
    fn check(exit: Option<(i32, bool)>, limit: Option<Bytes>, expected: &str) {
        let exit = exit.map(|(code, out_of_memory)| TaskExit { code, out_of_memory });
        assert_eq!(format_exit(exit, limit), expected);
    }

    #[test]
    fn exit_causes_are_distinguished() {
        check(Some((0, false)), None, "exited with code 0");
        check(Some((1, false)), None, "exited with code 1");
        check(Some((130, false)), None, "killed by signal 2 (SIGINT)");
        check(Some((137, false)), None, "killed by signal 9 (SIGKILL)");
        check(Some((128, false)), None, "exited with code 128");
        check(Some((255, false)), None, "exited with code 255");
        let limit = Some(Bytes(64 << 20));
        let expected = "ran out of memory (limit 64MiB; raise limits.memory): killed by signal 9 (SIGKILL)";
        check(Some((137, true)), limit, expected);
        assert!(format_exit(None, None).contains("without exit status"));
    }

    #[test]
    fn early_failure_with_secret_has_a_hint() {
        let mut spec = TaskSpec::new("x".parse().unwrap());
        let (failed, done) =
            (TaskExit { code: 1, out_of_memory: false }, TaskExit { code: 0, out_of_memory: false });
        let (soon, late) = (Duration::from_millis(9_999), Duration::from_secs(10));
        assert_eq!(exit_hint(&spec, Some(failed), soon), None);
        spec.secrets.push(SecretObjectMount::new("db".parse().unwrap()));
        let hint = "if it could not read its secrets: db has mode 0400 and belongs to the container's user; a program \
                    that changes its user needs --secret db,mode=0444 or uid=N";
        assert_eq!(exit_hint(&spec, Some(failed), soon).as_deref(), Some(hint));
        assert_eq!(exit_hint(&spec, Some(failed), late), None);
        assert_eq!(exit_hint(&spec, Some(done), soon), None);
        assert_eq!(exit_hint(&spec, Some(TaskExit { out_of_memory: true, ..failed }), soon), None);
        spec.secrets[0].uid = Some(999);
        assert!(exit_hint(&spec, Some(failed), soon).unwrap().contains("mode 0400 and belongs to uid 999;"));
        spec.secrets[0].mode = Some(0o444);
        assert_eq!(exit_hint(&spec, Some(failed), soon), None);
    }

    #[test]
    fn sizes_are_rounded_up() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 kB"),
            (20_000_000, "20 MB"),
            (20_000_001, "20.1 MB"),
            (2_300_000_000, "2.3 GB"),
            (2 << 30, "2.2 GB"),
            (5_000_000_000_000, "5 TB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_size(Bytes(bytes)), text);
        }
    }

    #[test]
    fn durations_are_short() {
        let cases = [(850, "850ms"), (12_400, "12s"), (300_000, "5m"), (7_200_000, "2h")];
        for (milliseconds, expected) in cases {
            assert_eq!(format_duration(Duration::from_millis(milliseconds)), expected);
        }
        assert_eq!(format_time_of_day(Timestamp(1_700_000_000_000)), "22:13:20 UTC");
    }
}
