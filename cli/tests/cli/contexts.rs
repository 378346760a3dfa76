//! `warren context ...`

use serde_json::json;

use crate::user::CliUser;

#[test]
fn contexts_are_listed_selected_and_removed() {
    let person = CliUser::new();
    let socket = person.path("warren.sock");
    let listed = person.ok(&["context", "ls"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines[0], "NAME   CURRENT   MANAGERS");
    assert_eq!(lines[1], format!("here   *         {}", socket.display()));
    assert_eq!(lines[2], "gone             /nowhere/s");
    assert_eq!(person.ok(&["context", "use", "gone"]), "gone\n");
    person.fails(5, &["service", "ls"]);
    let shown: serde_json::Value =
        serde_json::from_str(&person.ok(&["context", "ls", "-o", "json"])).unwrap();
    assert_eq!(shown[1], json!({"name": "gone", "current": true, "socket": "/nowhere/s"}));
    // The flag selects for one command.
    assert!(person.ok(&["--context", "here", "context", "ls"]).contains("here   *"));
    assert_eq!(person.ok(&["context", "rm", "gone"]), "gone\n");
    person.fails(3, &["context", "rm", "gone"]);
    person.fails(3, &["context", "use", "gone"]);
    assert_eq!(person.ok(&["context", "ls", "-q"]), "here\n");
    person.ok(&["context", "use", "here"]);
    person.ok(&["service", "ls"]);
}
