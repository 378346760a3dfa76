//! The programs in a real container: containerd's shim starts the logger, runc the init.

use warren_container_logs::{OutputEntry, OutputStream};
use warren_testkit::containerd::TestContainerd;
use warren_testkit::image::TestImage;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::wait::eventually;

use crate::shim::{TIMEOUT, read_all, texts};

const IMAGE: &str = "warren.local/logger:1";
/// The background process has no parent left, so the first process has to reap it.
const SCRIPT: &str = "(true &); echo parent $PPID; echo to err >&2; trap 'seq 2000; exit 3' TERM; \
                      echo ready; while :; do sleep 0.1; done";

#[test]
fn shim_starts_logger_and_waits() {
    let scratch = ScratchDir::new();
    let programs = warren_container_programs::ensure_installed(scratch.path()).unwrap();
    let dir = scratch.path().join("a dir");
    std::fs::create_dir(&dir).unwrap();
    let archive = scratch.path().join("image.tar");
    TestImage::busybox(IMAGE).oci_archive().write(&archive).unwrap();
    let containerd = TestContainerd::start();
    containerd.ctr(["image", "import", archive.to_str().unwrap()]);

    // runc keeps its states in one directory for the whole machine.
    let id = format!("logger-{}", std::process::id());
    let uri = format!(
        "binary://{}?max-files=3&dir={}&attempt=4&max-size=1000000",
        programs.logger.display(),
        dir.display().to_string().replace(' ', "%20")
    );
    let mount = format!("type=bind,src={},dst=/dev/init,options=rbind:ro", programs.init.display());
    let run = ["run", "--detach", "--log-uri", &uri, "--mount", &mount, IMAGE, &id];
    containerd.ctr(run.into_iter().chain(["/dev/init", "--", "sh", "-c", SCRIPT]));
    let found = eventually(TIMEOUT, "the first lines", || {
        let found = read_all(&dir);
        let lines = texts(&found);
        let all =
            ["parent 1", "to err", "ready"].iter().all(|expected| lines.iter().any(|line| line == expected));
        if all { Ok(found) } else { Err(format!("{found:?}")) }
    });
    assert_eq!(found[0], OutputEntry::Attempt { at: at(&found[0]), attempt: 4 });
    let count_lines = |text: &str, expected: OutputStream| {
        let is_it = |entry: &&OutputEntry| match entry {
            OutputEntry::Line(line) => line.text == text && line.stream == expected,
            _ => false,
        };
        found.iter().filter(is_it).count()
    };
    assert_eq!(count_lines("parent 1", OutputStream::Stdout), 1, "{found:?}");
    assert_eq!(count_lines("to err", OutputStream::Stderr), 1, "{found:?}");
    let processes = || containerd.ctr(["task", "ps", &id]).lines().count() - 1;
    // init, sh, and at most a sleep.
    eventually(TIMEOUT, "the orphan's end", || {
        let count = processes();
        if count <= 3 { Ok(()) } else { Err(format!("{count} processes")) }
    });

    containerd.ctr(["task", "kill", "--signal", "SIGTERM", &id]);
    eventually(TIMEOUT, "the end of the task", || {
        let tasks = containerd.ctr(["task", "ls"]);
        if tasks.contains("STOPPED") { Ok(()) } else { Err(tasks) }
    });
    // It returns when the logger has read everything.
    let deleted = warren_testkit::tool::output(
        warren_testkit::containerd::ctr(&containerd.socket(), ["task", "delete", &id]),
        TIMEOUT,
    );
    let words = String::from_utf8(deleted.unwrap().stderr).unwrap();
    assert!(words.contains("exit code 3"), "{words}");
    let last = texts(&read_all(&dir));
    let numbers: Vec<String> = (1..=2000).map(|number| number.to_string()).collect();
    assert!(last.ends_with(&numbers), "{:?}", last.last());
    containerd.ctr(["container", "delete", &id]);
}

fn at(entry: &OutputEntry) -> u64 {
    match entry {
        OutputEntry::Attempt { at, .. } => *at,
        other => panic!("{other:?}"),
    }
}
