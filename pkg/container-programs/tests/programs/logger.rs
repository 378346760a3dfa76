//! The logger: ready first, never blocking the container, and complete to the end of its input.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::signal::Signal;
use warren_container_logs::{OutputEntry, OutputStream};
use warren_testkit::scratch::ScratchDir;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::wait::eventually;

use crate::shim::{RunningLogger, TIMEOUT, disk_usage, read_all, texts};

#[test]
fn output_is_kept_until_input_ends() {
    let scratch = ScratchDir::new();
    let dir = scratch.path().join("a dir");
    std::fs::create_dir(&dir).unwrap();
    for attempt in 1..=2 {
        let mut logger = RunningLogger::start_and_wait(&scratch, &dir, 1 << 20, 3);
        logger.out.as_ref().unwrap().write_all(b"to out\nand ").unwrap();
        eventually(TIMEOUT, "the first line", || {
            let found = texts(&read_all(&dir));
            if found.ends_with(&["to out".to_owned()]) { Ok(()) } else { Err(format!("{found:?}")) }
        });
        logger.err.as_ref().unwrap().write_all(b"to err\n").unwrap();
        logger.err = None;
        eventually(TIMEOUT, "the second line", || {
            let found = texts(&read_all(&dir));
            if found.ends_with(&["to err".to_owned()]) { Ok(()) } else { Err(format!("{found:?}")) }
        });
        logger.out.as_ref().unwrap().write_all(b"no newline").unwrap();
        assert!(logger.is_running());
        logger.out = None;
        assert!(logger.wait().success());
        assert_eq!(logger.stderr(), "");
        let found = read_all(&dir);
        let expected = ["<attempt 1>", "to out", "to err", "and no newline"].repeat(attempt);
        assert_eq!(texts(&found), expected);
        let streams: Vec<OutputStream> = found
            .iter()
            .filter_map(|entry| if let OutputEntry::Line(line) = entry { Some(line.stream) } else { None })
            .collect();
        assert_eq!(
            streams,
            [OutputStream::Stdout, OutputStream::Stderr, OutputStream::Stdout].repeat(attempt)
        );
    }
    // An existing logger continues the first file.
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn arguments_come_in_any_order() {
    let pairs = [
        ["dir", ""],
        ["max-size", "100000"],
        ["max-files", "2"],
        ["attempt", "9"],
        ["flush-after", "100"],
        ["owner", "1000000"],
    ];
    for turn in 0..pairs.len() {
        let scratch = ScratchDir::new();
        let mut words = pairs;
        words[0][1] = scratch.path().to_str().unwrap();
        words.rotate_left(turn);
        let mut logger = RunningLogger::start(&scratch, &words.concat());
        logger.wait_ready();
        for end in [logger.out.take(), logger.err.take()] {
            let end = File::from(OwnedFd::from(end.unwrap())).metadata().unwrap();
            assert_eq!((end.uid(), end.gid()), (1_000_000, 1_000_000), "for users of the container");
        }
        assert!(logger.wait().success());
        assert_eq!(texts(&read_all(scratch.path())), ["<attempt 9>"]);
    }
}

#[test]
fn beginning_of_line_is_written_if_its_rest_does_not_follow() {
    let scratch = ScratchDir::new();
    let dir = scratch.path().to_str().unwrap();
    let words = ["dir", dir, "max-size", "100000", "max-files", "2", "flush-after", "10"];
    let mut logger = RunningLogger::start(&scratch, &words);
    logger.wait_ready();
    logger.out.as_ref().unwrap().write_all(b"line\nname: ").unwrap();
    eventually(TIMEOUT, "the prompt", || {
        let found = texts(&read_all(scratch.path()));
        if found == ["line", "name: "] { Ok(()) } else { Err(format!("{found:?}")) }
    });
    logger.out.as_ref().unwrap().write_all(b"hello\n").unwrap();
    (logger.out, logger.err) = (None, None);
    assert!(logger.wait().success());
    let parts = read_all(scratch.path()).into_iter().filter_map(|entry| match entry {
        OutputEntry::Line(line) => Some((String::from_utf8(line.text.to_vec()).unwrap(), line.partial)),
        _ => None,
    });
    let expected = [("line", false), ("name: ", true), ("hello", false)];
    assert_eq!(parts.collect::<Vec<_>>(), expected.map(|(text, partial)| (text.to_owned(), partial)));
}

#[test]
fn invalid_arguments_exit_without_blocking_container() {
    let scratch = ScratchDir::new();
    for (words, expected) in [
        (&[][..], "\"max-size\" is missing"),
        (&["dir", "relative", "max-size", "1", "max-files", "1"], "absolute"),
        (&["dir", "/", "max-size", "1", "max-files", "0"], "\"max-files\" is \"0\""),
        (&["dir", "/", "max-size", "1", "max-files", "1", "x", ""], "unknown argument \"x\""),
        (&["--help"], "has no value"),
    ] {
        let mut logger = RunningLogger::start(&scratch, words);
        logger.wait_ready();
        assert_eq!(logger.wait().code(), Some(2));
        let found = logger.stderr();
        assert!(found.starts_with("warren-logger: ") && found.contains(expected), "{words:?}: {found}");
    }
}

#[test]
fn signals_are_ignored_until_input_ends() {
    let scratch = ScratchDir::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let mut logger = RunningLogger::start_and_wait(&scratch, &dir, 1 << 30, 3);
    // Stopped, it reads nothing: all of this waits in the pipe when the shim closes it and sends SIGTERM.
    logger.signal(Signal::SIGSTOP);
    let lines: Vec<String> = (0..5000).map(|index| format!("line {index}")).collect();
    let text = lines.join("\n") + "\n";
    assert!(text.len() < 64 * 1024, "it must fit into the pipe");
    logger.out.as_ref().unwrap().write_all(text.as_bytes()).unwrap();
    (logger.out, logger.err) = (None, None);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        logger.signal(signal);
    }
    logger.signal(Signal::SIGCONT);
    assert!(logger.wait().success());
    assert_eq!(texts(&read_all(&dir))[1..], lines);
}

#[test]
fn inherited_fds_are_closed() {
    let scratch = ScratchDir::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let logger = RunningLogger::start_and_wait(&scratch, &dir, 1 << 20, 3);
    // Readiness comes first, so the rest of the start may still be in progress.
    eventually(TIMEOUT, "strays to be closed", || {
        let mut open = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{}/fd", logger.pid())).unwrap() {
            // Closed since it was listed.
            let Ok(target) = std::fs::read_link(entry.unwrap().path()) else { continue };
            open.push(target.to_string_lossy().into_owned());
        }
        let pipes = open.iter().filter(|target| target.starts_with("pipe:")).count();
        let files = open.iter().filter(|target| target.ends_with("0000000001.log")).count();
        if (open.len(), pipes, files) == (6, 2, 1) { Ok(()) } else { Err(format!("{open:?}")) }
    });
    assert_eq!(std::fs::read_link(format!("/proc/{}/cwd", logger.pid())).unwrap().to_str(), Some("/"));
}

#[test]
fn missing_directory_keeps_pipe_open() {
    let scratch = ScratchDir::new();
    let dir = scratch.path().join("later");
    let mut logger = RunningLogger::start_and_wait(&scratch, &dir, 1 << 20, 3);
    write_more_than_a_pipe_holds(logger.out.as_mut().unwrap());
    let words = logger.stderr();
    assert!(words.contains("lines are lost until it can"), "{words}");
    std::fs::create_dir(&dir).unwrap();
    // Without another line. What was still in the pipe is stored.
    eventually(TIMEOUT, "words about the loss", || {
        let (lost, kept) = lost_and_kept(&dir);
        if lost + kept == MANY { Ok(()) } else { Err(format!("{lost} lost, {kept} kept")) }
    });
    assert!(lost_and_kept(&dir).0 > 0);
    logger.out.as_ref().unwrap().write_all(b"after\n").unwrap();
    (logger.out, logger.err) = (None, None);
    assert!(logger.wait().success());
    assert_eq!(texts(&read_all(&dir)).last().unwrap(), "after");
}

#[test]
fn full_disk_does_not_block_container() {
    let scratch = ScratchDir::new();
    let disk = SmallDisk::new(scratch.path(), 4);
    let mut logger = RunningLogger::start_and_wait(&scratch, disk.path(), 64 << 20, 2);
    let mut out = logger.out.take().unwrap();
    out.write_all(b"before\n").unwrap();
    eventually(TIMEOUT, "the first line", || {
        let found = texts(&read_all(disk.path()));
        if found.len() == 2 { Ok(()) } else { Err(format!("{found:?}")) }
    });
    disk.fill();
    write_more_than_a_pipe_holds(&mut out);
    assert!(logger.is_running());
    disk.free();
    // What was still in the pipe is stored.
    eventually(TIMEOUT, "words about the loss", || {
        let (lost, kept) = lost_and_kept(disk.path());
        if lost + kept == MANY { Ok(()) } else { Err(format!("{lost} lost, {kept} kept")) }
    });
    assert!(lost_and_kept(disk.path()).0 > MANY / 2);
    out.write_all(b"after\n").unwrap();
    drop(out);
    logger.err = None;
    assert!(logger.wait().success());
    let texts = texts(&read_all(disk.path()));
    assert_eq!((texts[1].as_str(), texts.last().unwrap().as_str()), ("before", "after"));
}

/// Lines of [`write_more_than_a_pipe_holds`].
const MANY: u64 = 4096;

/// Returns only because the logger reads.
fn write_more_than_a_pipe_holds(out: &mut impl Write) {
    let line = [&[b'x'; 1023][..], b"\n"].concat();
    for _ in 0..MANY {
        out.write_all(&line).unwrap();
    }
}

/// How many of those lines were lost and kept.
fn lost_and_kept(dir: &Path) -> (u64, u64) {
    let found = read_all(dir);
    let kept = texts(&found).iter().filter(|text| text.len() == 1023).count() as u64;
    (found.iter().map(lost).sum(), kept)
}

fn lost(entry: &OutputEntry) -> u64 {
    if let OutputEntry::Lost { lines, .. } = entry { *lines } else { 0 }
}

#[test]
fn flood_stays_within_limits() {
    let scratch = ScratchDir::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let (max_size, max_files) = (300_000, 4);
    let mut logger = RunningLogger::start_and_wait(&scratch, &dir, max_size, max_files);
    let out = logger.out.take().unwrap();
    let mut flood = std::io::BufWriter::with_capacity(60_000, out);
    for index in 0..200_000 {
        writeln!(flood, "line {index} of a flood").unwrap();
        if index % 1000 == 0 {
            let kept = disk_usage(&dir);
            assert!(kept <= max_size * max_files + 16 * 1024, "{kept}");
        }
    }
    drop(flood);
    logger.err = None;
    assert!(logger.wait().success());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count() as u64, max_files);
    let found = texts(&read_all(&dir));
    let first = 200_000 - found.len();
    assert!(found.len() > 10_000);
    for (index, text) in (first..).zip(&found) {
        assert_eq!(*text, format!("line {index} of a flood"));
    }
}

#[test]
fn killed_logger_does_not_block_next_one() {
    let scratch = ScratchDir::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let mut next = 0_u64;
    for _ in 0..5 {
        let mut logger = RunningLogger::start_and_wait(&scratch, &dir, 200_000, 1000);
        let mut out = logger.out.take().unwrap();
        let before = disk_usage(&dir);
        // The second half is in transit when the logger dies; then the pipe has no reader.
        while disk_usage(&dir) < before + 500_000 {
            for _ in 0..100 {
                writeln!(out, "line {next} that is kept or not").unwrap();
                next += 1;
            }
        }
        logger.signal(Signal::SIGKILL);
        logger.err = None;
        assert!(!logger.wait().success());
    }
    let mut logger = RunningLogger::start_and_wait(&scratch, &dir, 200_000, 1000);
    (logger.out, logger.err) = (None, None);
    assert!(logger.wait().success());
    let found = texts(&read_all(&dir));
    assert_eq!(found.iter().filter(|text| *text == "<attempt 1>").count(), 6);
    let number =
        |text: &String| text.strip_prefix("line ")?.strip_suffix(" that is kept or not")?.parse().ok();
    let numbers: Vec<u64> = found.iter().filter_map(number).collect();
    assert_eq!(numbers.len() + 6, found.len(), "everything else is an attempt");
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    // At most the pipe content of each attempt is lost.
    assert!(numbers.len() as u64 > next - 5 * 5000, "{} of {next}", numbers.len());
}
