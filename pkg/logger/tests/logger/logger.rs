//! The logger: ready before anything else, never in the way, and to the end of its input.

use std::io::Write;

use nix::sys::signal::Signal;
use warren_logger::{Entry, Stream};
use warren_testkit::scratch::Scratch;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::wait::eventually;

use crate::shim::{Logger, SOON, everything, texts};

#[test]
fn it_keeps_what_is_written_and_ends_with_its_input() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("a dir");
    std::fs::create_dir(&dir).unwrap();
    for attempt in 1..=2 {
        let mut logger = Logger::ready(&scratch, &dir, 1 << 20, 3);
        logger.out.as_ref().unwrap().write_all(b"to out\nand ").unwrap();
        eventually(SOON, "the first line", || {
            let found = texts(&everything(&dir));
            if found.ends_with(&["to out".to_owned()]) { Ok(()) } else { Err(format!("{found:?}")) }
        });
        logger.err.as_ref().unwrap().write_all(b"to err\n").unwrap();
        logger.err = None;
        eventually(SOON, "the second line", || {
            let found = texts(&everything(&dir));
            if found.ends_with(&["to err".to_owned()]) { Ok(()) } else { Err(format!("{found:?}")) }
        });
        logger.out.as_ref().unwrap().write_all(b"no newline").unwrap();
        assert!(logger.is_running());
        logger.out = None;
        assert!(logger.ended().success());
        assert_eq!(logger.words(), "");
        let found = everything(&dir);
        let expected = ["<attempt 1>", "to out", "to err", "and no newline"].repeat(attempt);
        assert_eq!(texts(&found), expected);
        let streams: Vec<Stream> = found
            .iter()
            .filter_map(|entry| if let Entry::Line(line) = entry { Some(line.stream) } else { None })
            .collect();
        assert_eq!(streams, [Stream::Out, Stream::Err, Stream::Out].repeat(attempt));
    }
    // One that was there continued the first file.
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn arguments_come_in_any_order() {
    let pairs = [["dir", ""], ["max-size", "100000"], ["max-files", "2"], ["attempt", "9"]];
    for turn in 0..pairs.len() {
        let scratch = Scratch::new();
        let mut words = pairs;
        words[0][1] = scratch.path().to_str().unwrap();
        words.rotate_left(turn);
        let mut logger = Logger::start(&scratch, &words.concat());
        logger.wait_ready();
        (logger.out, logger.err) = (None, None);
        assert!(logger.ended().success());
        assert_eq!(texts(&everything(scratch.path())), ["<attempt 9>"]);
    }
}

#[test]
fn bad_arguments_end_it_with_words_and_never_hold_the_container_back() {
    let scratch = Scratch::new();
    for (words, told) in [
        (&[][..], "\"max-size\" is missing"),
        (&["dir", "relative", "max-size", "1", "max-files", "1"], "absolute"),
        (&["dir", "/", "max-size", "1", "max-files", "0"], "\"max-files\" is \"0\""),
        (&["dir", "/", "max-size", "1", "max-files", "1", "x", ""], "no argument \"x\""),
        (&["--help"], "stands alone"),
    ] {
        let mut logger = Logger::start(&scratch, words);
        logger.wait_ready();
        assert_eq!(logger.ended().code(), Some(2));
        let found = logger.words();
        assert!(found.starts_with("warren-logger: ") && found.contains(told), "{words:?}: {found}");
    }
}

#[test]
fn signals_do_not_end_it_before_its_input_does() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let mut logger = Logger::ready(&scratch, &dir, 1 << 30, 3);
    // Stopped, it reads nothing: all of this waits in the pipe when the shim closes it and asks the logger to
    // end.
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
    assert!(logger.ended().success());
    assert_eq!(texts(&everything(&dir))[1..], lines);
}

#[test]
fn nothing_stays_open_but_what_it_needs() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let logger = Logger::ready(&scratch, &dir, 1 << 20, 3);
    // Ready is told first, so the rest of the start may still be under way.
    eventually(SOON, "strays to be closed", || {
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
fn a_directory_that_is_not_there_does_not_break_the_pipe() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("later");
    let mut logger = Logger::ready(&scratch, &dir, 1 << 20, 3);
    logger.out.as_ref().unwrap().write_all(b"gone\n").unwrap();
    eventually(SOON, "words about it", || {
        let words = logger.words();
        if words.contains("drops lines until it can") { Ok(()) } else { Err(words) }
    });
    std::fs::create_dir(&dir).unwrap();
    // Without another line.
    eventually(SOON, "words about the loss", || {
        let found = texts(&everything(&dir));
        if found == ["<lost 1>"] { Ok(()) } else { Err(format!("{found:?}")) }
    });
    logger.out.as_ref().unwrap().write_all(b"kept\n").unwrap();
    (logger.out, logger.err) = (None, None);
    assert!(logger.ended().success());
    assert_eq!(texts(&everything(&dir)), ["<lost 1>", "kept"]);
}

#[test]
fn a_full_disk_neither_blocks_nor_ends_the_container() {
    let scratch = Scratch::new();
    let disk = SmallDisk::new(scratch.path(), 4);
    let mut logger = Logger::ready(&scratch, disk.path(), 64 << 20, 2);
    let mut out = logger.out.take().unwrap();
    out.write_all(b"before\n").unwrap();
    eventually(SOON, "the first line", || {
        let found = texts(&everything(disk.path()));
        if found.len() == 2 { Ok(()) } else { Err(format!("{found:?}")) }
    });
    disk.fill();
    // Far more than fits into the pipe: this returns only because somebody reads it.
    let line = [&[b'x'; 1023][..], b"\n"].concat();
    let written = 4096;
    for _ in 0..written {
        out.write_all(&line).unwrap();
    }
    assert!(logger.is_running());
    disk.free();
    // What was still in the pipe by then is kept.
    let sum = || {
        let found = everything(disk.path());
        let kept = texts(&found).iter().filter(|text| text.len() == 1023).count() as u64;
        (found.iter().map(lost).sum::<u64>(), kept)
    };
    eventually(SOON, "words about the loss", || {
        let (lost, kept) = sum();
        if lost + kept == written { Ok(()) } else { Err(format!("{lost} lost, {kept} kept")) }
    });
    assert!(sum().0 > written / 2);
    out.write_all(b"after\n").unwrap();
    drop(out);
    logger.err = None;
    assert!(logger.ended().success());
    let texts = texts(&everything(disk.path()));
    assert_eq!((texts[1].as_str(), texts.last().unwrap().as_str()), ("before", "after"));
}

fn lost(entry: &Entry) -> u64 {
    if let Entry::Lost { lines, .. } = entry { *lines } else { 0 }
}

#[test]
fn a_flood_stays_within_its_bounds() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let (max_size, max_files) = (300_000, 4);
    let mut logger = Logger::ready(&scratch, &dir, max_size, max_files);
    let out = logger.out.take().unwrap();
    let mut flood = std::io::BufWriter::with_capacity(60_000, out);
    for index in 0..200_000 {
        writeln!(flood, "line {index} of a flood").unwrap();
        if index % 1000 == 0 {
            let kept = warren_logger::retained(&dir).unwrap();
            assert!(kept <= max_size * max_files + 16 * 1024, "{kept}");
        }
    }
    drop(flood);
    logger.err = None;
    assert!(logger.ended().success());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count() as u64, max_files);
    let found = texts(&everything(&dir));
    let first = 200_000 - found.len();
    assert!(found.len() > 10_000);
    for (index, text) in (first..).zip(&found) {
        assert_eq!(*text, format!("line {index} of a flood"));
    }
}

#[test]
fn a_killed_logger_leaves_nothing_that_stands_in_the_way() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let mut next = 0_u64;
    for _ in 0..5 {
        let mut logger = Logger::ready(&scratch, &dir, 200_000, 1000);
        let mut out = logger.out.take().unwrap();
        let before = warren_logger::retained(&dir).unwrap();
        // The second half is on its way when the logger dies; then nobody reads the pipe any more.
        while warren_logger::retained(&dir).unwrap() < before + 500_000 {
            for _ in 0..100 {
                writeln!(out, "line {next} that is kept or not").unwrap();
                next += 1;
            }
        }
        logger.signal(Signal::SIGKILL);
        logger.err = None;
        assert!(!logger.ended().success());
    }
    let mut logger = Logger::ready(&scratch, &dir, 200_000, 1000);
    (logger.out, logger.err) = (None, None);
    assert!(logger.ended().success());
    let found = texts(&everything(&dir));
    assert_eq!(found.iter().filter(|text| *text == "<attempt 1>").count(), 6);
    let number =
        |text: &String| text.strip_prefix("line ")?.strip_suffix(" that is kept or not")?.parse().ok();
    let numbers: Vec<u64> = found.iter().filter_map(number).collect();
    assert_eq!(numbers.len() + 6, found.len(), "everything else is an attempt");
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    // Of each attempt at most what was in the pipe is gone.
    assert!(numbers.len() as u64 > next - 5 * 5000, "{} of {next}", numbers.len());
}
