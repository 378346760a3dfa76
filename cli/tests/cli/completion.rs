//! `warren completion`, the names that it offers, and `warren man`.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::user::CliUser;

/// What bash offers for the words of a line, of which the last is completed, with the script sourced.
fn offered(person: &CliUser, words: &[&str]) -> Vec<String> {
    let script = person.path("warren.bash");
    std::fs::write(&script, person.ok(&["completion", "bash"])).unwrap();
    let driver = "source \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_LINE=\"$*\"
                  COMP_POINT=${#COMP_LINE}; _warren; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash")
        .args(["--norc", "-c", driver])
        .arg(&script)
        .arg(env!("CARGO_BIN_EXE_warren"))
        .args(words)
        .env("HOME", person.path(""))
        .env("WARREN_CONTEXTS", person.path("contexts.toml"))
        .env("WARREN_RUN_DIR", person.path("run"))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&bash.stderr), "", "{words:?}");
    let text = String::from_utf8(bash.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_names_of_the_cluster() {
    let person = CliUser::new();
    for name in ["web", "worker", "db"] {
        person.ok(&["service", "create", name, "--image=runs"]);
    }
    person.ok(&["network", "create", "back"]);
    for (words, expected) in [
        (&["serv"][..], &["service"][..]),
        (&["service", "roll"], &["rollback"]),
        (&["service", "ls", "--no-tr"], &["--no-trunc"]),
        (&["service", "inspect", ""], &["db", "web", "worker"]),
        (&["service", "inspect", "w"], &["web", "worker"]),
        (&["service", "scale", "d"], &["db="]),
        (&["task", "ls", "--service", "=", "w"], &["web", "worker"]),
        (&["task", "ls", "--service", "d"], &["db"]),
        (&["network", "rm", ""], &["back", "default"]),
        (&["task", "inspect", "db."], &["db.1"]),
        (&["--context", "g"], &["gone"]),
        (&["service", "ls", "--output", "=", "j"], &["json"]),
    ] {
        // The cluster has half a second to answer, which is too short at times on a loaded machine.
        let mut found = offered(&person, words);
        for _ in 1..20 {
            if found != expected {
                found = offered(&person, words);
            }
        }
        assert_eq!(found, expected, "{words:?}");
    }
}

#[test]
fn unreachable_cluster_has_no_names_and_no_errors() {
    /// Shorter than the client waits for a manager that does not answer.
    const LIMIT: Duration = Duration::from_secs(4);
    let person = CliUser::new();
    assert_eq!(offered(&person, &["--context", "gone", "service", "inspect", ""]), [""; 0]);
    // A manager that does not answer at all: nobody waits for it at a prompt.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let is_quick = || {
        let begun = Instant::now();
        let ran = person.warren(&["__complete", "--", "--manager", &address, "service", "inspect", ""]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "words\n"), "{ran:?}");
        begun.elapsed() < LIMIT
    };
    // A loaded machine may exceed the limit at times.
    assert!((0..10).any(|_| is_quick()), "the command waits");
}

#[test]
fn scripts_of_other_shells_call_the_same_command() {
    let person = CliUser::new();
    for shell in ["zsh", "fish"] {
        assert!(person.ok(&["completion", shell]).contains(" __complete -- "), "{shell}");
    }
    assert!(person.fails(2, &["completion", "tcsh"]).contains("[possible values: bash, zsh, fish]"));
}

#[test]
fn manual_has_a_page_for_each_command() {
    let person = CliUser::new();
    let pages = person.path("man");
    assert_eq!(person.ok(&["man", pages.to_str().unwrap()]), "");
    for (page, text) in [
        ("warren.1", "Run containers on a cluster"),
        ("warren-service-create.1", "\\-\\-replicas"),
        ("warren-completion.1", "bash"),
        ("warren-stack-ps.1", "STACK"),
    ] {
        let shown =
            std::fs::read_to_string(pages.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(
            shown.starts_with(".ie") && shown.contains(".TH ") && shown.contains(text),
            "{page}: {shown}"
        );
    }
    for page in std::fs::read_dir(&pages).unwrap() {
        let page = page.unwrap();
        let name = page.file_name().into_string().unwrap();
        assert!(!name.contains("__complete"), "{name}");
        assert!(page.metadata().unwrap().len() > 200, "{name}");
    }
    assert!(person.ok(&["man"]).contains(".TH "));
}
