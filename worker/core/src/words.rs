//! How the ends of processes, durations and times of day are said to people.

use std::time::Duration;

use warren_types::{Bytes, Exit, Signal, Timestamp};

/// Added to a signal's number it is the exit code of a process that the signal ended (POSIX shells, containerd).
const ENDED_BY_SIGNAL: i32 = 128;

/// How an attempt ended. `None`: the process is gone and nobody knows how it ended.
pub fn ending(exit: Option<Exit>, memory_limit: Option<Bytes>) -> String {
    let Some(Exit { code, out_of_memory }) = exit else {
        return "its process is gone and left no exit status (was the machine restarted, or its shim killed?)"
            .into();
    };
    let said = match code.checked_sub(ENDED_BY_SIGNAL).and_then(Signal::from_number) {
        Some(signal) => format!("killed by signal {} ({signal})", signal.number()),
        None => format!("exited with code {code}"),
    };
    match (out_of_memory, memory_limit) {
        (false, _) => said,
        (true, Some(limit)) => format!("ran out of memory (limit {limit}; raise limits.memory): {said}"),
        (true, None) => format!("ran out of memory (the node's own is used up): {said}"),
    }
}

/// A length of time with the precision that a person cares for: `850ms`, `12s`, `5m`.
pub fn lasting(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        seconds @ 1..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds => format!("{}h", seconds / 3600),
    }
}

/// Time of day, for moments that are at most minutes away: `14:03:07 UTC`.
pub fn time_of_day(at: Timestamp) -> String {
    let seconds = at.0 / 1000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(exit: Option<(i32, bool)>, limit: Option<Bytes>, wanted: &str) {
        let exit = exit.map(|(code, out_of_memory)| Exit { code, out_of_memory });
        assert_eq!(ending(exit, limit), wanted);
    }

    #[test]
    fn ends_are_told_apart() {
        check(Some((0, false)), None, "exited with code 0");
        check(Some((1, false)), None, "exited with code 1");
        check(Some((130, false)), None, "killed by signal 2 (SIGINT)");
        check(Some((137, false)), None, "killed by signal 9 (SIGKILL)");
        check(Some((128, false)), None, "exited with code 128");
        check(Some((255, false)), None, "exited with code 255");
        let limit = Some(Bytes(64 << 20));
        let wanted = "ran out of memory (limit 64MiB; raise limits.memory): killed by signal 9 (SIGKILL)";
        check(Some((137, true)), limit, wanted);
        assert!(ending(None, None).contains("left no exit status"));
    }

    #[test]
    fn times_are_short() {
        let cases = [(850, "850ms"), (12_400, "12s"), (300_000, "5m"), (7_200_000, "2h")];
        for (milliseconds, wanted) in cases {
            assert_eq!(lasting(Duration::from_millis(milliseconds)), wanted);
        }
        assert_eq!(time_of_day(Timestamp(1_700_000_000_000)), "22:13:20 UTC");
    }
}
