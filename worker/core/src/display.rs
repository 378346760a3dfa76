//! Human-readable exits of processes, durations and times of day.

use std::time::Duration;

use warren_types::{Bytes, Signal, TaskExit, Timestamp};

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

/// A duration, rounded for people: `850ms`, `12s`, `5m`.
pub fn format_duration(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        seconds @ 1..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds => format!("{}h", seconds / 3600),
    }
}

/// Time of day, for moments that are at most minutes away: `14:03:07 UTC`.
pub fn format_time_of_day(at: Timestamp) -> String {
    let seconds = at.0 / 1000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
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
    fn durations_are_short() {
        let cases = [(850, "850ms"), (12_400, "12s"), (300_000, "5m"), (7_200_000, "2h")];
        for (milliseconds, expected) in cases {
            assert_eq!(format_duration(Duration::from_millis(milliseconds)), expected);
        }
        assert_eq!(format_time_of_day(Timestamp(1_700_000_000_000)), "22:13:20 UTC");
    }
}
