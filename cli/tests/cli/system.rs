//! `warren system ...`

use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::user::CliUser;

/// Prints what a check could change in its namespaces: rules, links, addresses, sockets, settings, mounts.
const STATE: &str = "nft list ruleset; iptables-save | grep -v ^#; ip -o link; ip -o address; \
                     ss --listening --tcp --udp --numeric; cat /proc/sys/net/ipv4/ip_forward /proc/self/mounts";

/// Checks the machine between two prints of the state, which must be the same.
const CHECK: &str = "ip link set lo up; sh -c \"$STATE\" >before; \
                     \"$WARREN\" system check --data-dir $PWD/data --run-dir $PWD/run -o json >found; code=$?; \
                     sh -c \"$STATE\" >after; cmp before after || exit 100; exit $code";

fn by_name<'a>(results: &'a Value, name: &str) -> &'a Value {
    let mut all = results.as_array().unwrap().iter();
    all.find(|result| result["name"] == name).unwrap_or_else(|| panic!("no {name} in {results}"))
}

#[test]
fn a_machine_is_checked_without_a_change() {
    let person = CliUser::new();
    // In namespaces of its own: tests on the same machine change others, and use the ports.
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", CHECK])
        .current_dir(person.path(""))
        .env("STATE", STATE)
        .env("WARREN", env!("CARGO_BIN_EXE_warren"))
        .output()
        .unwrap();
    let results: Value =
        serde_json::from_str(&std::fs::read_to_string(person.path("found")).unwrap()).unwrap();
    let failed = results.as_array().unwrap().iter().any(|result| result["outcome"] == "failed");
    assert_eq!(output.status.code(), Some(i32::from(failed)), "{output:?} {results}");
    for name in [
        "root",
        "kernel",
        "cgroups",
        "overlayfs",
        "veth",
        "vxlan",
        "conntrack",
        "forwarding",
        "iptables",
        "nftables",
        "oci-runtime",
        "port 8080/tcp",
        "port 9090/tcp",
        "port 4789/udp",
    ] {
        assert_eq!(by_name(&results, name)["outcome"], "passed", "{results}");
    }
    for name in ["containerd", "apparmor", "clock", "disk", "memory", "dns"] {
        assert!(by_name(&results, name)["message"].is_string(), "{results}");
    }
    for directory in ["data", "run"] {
        assert!(!person.path(directory).exists(), "{directory} was created");
    }
}

#[test]
fn missing_programs_and_taken_ports_are_named_with_their_remedy() {
    let person = CliUser::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let words = ["system", "check", "--listen", &address, "--metrics-listen", "none", "--data-dir"];
    let data = person.path("data");
    // Its environment is empty: only programs in the usual directories of the C library are found.
    let ran = Command::new(env!("CARGO_BIN_EXE_warren"))
        .args(words)
        .arg(&data)
        .env_clear()
        .env("PATH", "/no/such/directory")
        .output()
        .unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{text}");
    for expected in [
        "\u{221a} root: this process runs as root\n",
        "\n    try: apt-get install iptables\n",
        "\n    try: apt-get install nftables\n",
        &format!("(pid {})\n    try: stop it, or choose another port with --listen\n", std::process::id()),
        "\nStatus: failed (",
    ] {
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
    assert!(!text.contains("9090/tcp"), "{text}");
    // A manager alone needs neither.
    let data = data.to_str().unwrap();
    let words = ["system", "check", "--manager-only", "--metrics-listen=none", "--listen=127.0.0.1:0"];
    let ran = person.warren(&[&words[..], &["--data-dir", data]].concat());
    assert!(!ran.stdout.contains("iptables") && ran.stdout.contains("kernel"), "{ran:?}");
}

#[test]
fn unit_file_is_written_for_the_node_and_removed() {
    let person = CliUser::new();
    let (data, units) = (person.path("data"), person.path("units"));
    std::fs::create_dir(&data).unwrap();
    std::fs::create_dir(&units).unwrap();
    let (data, units) = (data.to_str().unwrap(), units.to_str().unwrap());
    let install = ["system", "install", "--data-dir", data, "--unit-dir", units];
    let refused = person.fails(3, &install);
    assert!(refused.contains("has no node") && refused.contains("warren manager init"), "{refused}");
    std::fs::write(format!("{data}/node.toml"), "[node]\n[joined]\nmanagers = [\"m:8080\"]\n[worker]\n")
        .unwrap();
    let file = format!("{units}/warren.service");
    for _ in 0..2 {
        assert_eq!(person.ok(&install), format!("{file}\n"));
    }
    let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_warren")).unwrap();
    let program = program.display();
    let run = person.path("run");
    let command = format!(
        "\nExecStart=\"{program}\" worker run --data-dir \"{data}\" --run-dir \"{}\"\n",
        run.display()
    );
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(&command) && text.contains("\nKillMode=process\n"), "{text}");
    let uninstall = ["system", "uninstall", "--unit-dir", units];
    assert_eq!(person.ok(&uninstall), format!("removed {file}\n"));
    assert_eq!(person.ok(&uninstall), format!("there is no {file}\n"));
}
