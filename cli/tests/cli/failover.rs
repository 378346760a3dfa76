//! Several managers: whoever answers is asked, and the contexts file follows where they are.

use std::fs;
use std::time::{Duration, SystemTime};

use tokio::net::TcpSocket;
use warren_client::{ClientTarget, Contexts};
use warren_security::{CertificateAuthority, Credentials, Identity, PrivateKey, Role};

use crate::user::CliUser;

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("0000000000000000000000001", SystemTime::now()).unwrap()
}

/// A context with these addresses, `how` they are said, of an administrator.
fn context(person: &CliUser, authority: &CertificateAuthority, how: &str) {
    context_of(person, authority, how, SystemTime::now());
}

/// The same, with a certificate of that time.
fn context_of(person: &CliUser, authority: &CertificateAuthority, how: &str, issued_at: SystemTime) {
    let identity = Identity::new(authority.cluster(), Role::User, "ann").unwrap();
    let admin = authority.issue(&identity, issued_at).unwrap();
    let (ca, certificate, key) =
        (authority.certificate_pem(), admin.certificate_pem(), admin.key().pem().to_owned());
    person.write_contexts(&format!(
        "current = \"far\"\n[[contexts]]\nname = \"far\"\n{how}\nca = '''{ca}'''\ncertificate = '''{certificate}'''\n\
         key = '''{key}'''\n"
    ));
}

fn addresses(person: &CliUser) -> String {
    let text = fs::read_to_string(person.path("contexts.toml")).unwrap();
    let line = text.lines().find(|line| line.starts_with("address")).unwrap();
    line.to_owned()
}

/// The address of a port that refuses connections, and the socket that keeps the port from others.
fn closed_port() -> (String, TcpSocket) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    (socket.local_addr().unwrap().to_string(), socket)
}

/// The context from before is enough to connect to managers that have certificates of the new authority.
#[test]
fn contexts_file_follows_the_replacement_of_the_authority() {
    let (person, old) = (CliUser::new(), authority());
    let new = old.successor(SystemTime::now()).unwrap().without_predecessors();
    let (before, first) = person.manager.add_peer(&old);
    context(&person, &old, &format!("addresses = [\"{before}\"]"));
    let shown = || fs::read_to_string(person.path("contexts.toml")).unwrap();
    let written = shown();
    person.ok(&["cluster", "info"]);
    assert_eq!(shown(), written, "nothing was replaced");
    drop(first);
    // It accepts the certificate from before, as managers do, whose list has its key.
    let (address, _serving) = person.manager.add_peer_trusting(&new, &old);
    let (name, root) = (format!("addresses = [\"{address}\"]"), new.certificate_pem().to_owned());
    context(&person, &old, &name);
    person.manager.replace_authority(new);
    person.ok(&["cluster", "info"]);
    let renewed = shown();
    let text = renewed.replace("\\n", "\n");
    assert!(text.contains(&root) && !text.contains(old.certificate_pem()), "{text}");
    for _ in 0..2 {
        person.ok(&["cluster", "info"]);
        assert_eq!(shown(), renewed, "the second time there is nothing to do");
    }
}

/// The certificate in the context, whose key is the same.
fn credentials(person: &CliUser) -> Credentials {
    let file = Contexts::load(&person.path("contexts.toml")).unwrap();
    let ClientTarget::Tcp { identity, .. } = &file.get("far").unwrap().target else { panic!("{file:?}") };
    Credentials::new(identity.certificate.clone(), PrivateKey::parse(&identity.key.0).unwrap()).unwrap()
}

#[test]
fn certificate_is_renewed_before_a_command() {
    let (person, authority) = (CliUser::new(), authority());
    let (address, _serving) = person.manager.add_peer(&authority);
    person.manager.replace_authority(CertificateAuthority::parse_pem(&authority.to_pem()).unwrap());
    let how = format!("addresses = [\"{address}\"]");
    // It has expired, or more than half of its lifetime is past.
    for hours in [100 * 24, 13] {
        let issued_at = SystemTime::now() - Duration::from_secs(hours * 3600);
        context_of(&person, &authority, &how, issued_at);
        let before = credentials(&person);
        person.ok(&["cluster", "info"]);
        let renewed = credentials(&person);
        assert_eq!(renewed.key().pem(), before.key().pem());
        assert!(renewed.issued_at() > before.issued_at() && !renewed.is_past_half(SystemTime::now()));
        person.ok(&["cluster", "info"]);
        let again = credentials(&person);
        assert_eq!(again.certificate_pem(), renewed.certificate_pem(), "that is not needed again");
    }
}

#[test]
fn clients_of_docker_get_a_certificate_with_the_requested_lifetime() {
    let (person, authority) = (CliUser::new(), authority());
    let (address, _serving) = person.manager.add_peer(&authority);
    person.manager.replace_authority(CertificateAuthority::parse_pem(&authority.to_pem()).unwrap());
    context(&person, &authority, &format!("addresses = [\"{address}\"]"));
    let stored = credentials(&person);
    let dir = person.path("docker");
    let lifetime = |options: &[&str]| {
        let words: [&[&str]; 2] = [&["context", "export", "--docker", dir.to_str().unwrap()], options];
        person.ok(&words.concat());
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
        assert_eq!(read("ca.pem"), authority.certificate_pem());
        let key = PrivateKey::parse(&read("key.pem")).unwrap();
        assert_eq!(key.pem(), stored.key().pem());
        let shown = Credentials::new(read("cert.pem"), key).unwrap();
        shown.expires_at().duration_since(shown.issued_at()).unwrap().as_secs() / 3600
    };
    assert_eq!((lifetime(&[]), lifetime(&["--ttl", "90d"])), (24, 90 * 24));
    assert_eq!(credentials(&person).certificate_pem(), stored.certificate_pem(), "the context has its own");
    person.write_contexts("current = \"near\"\n[[contexts]]\nname = \"near\"\nsocket = \"/run/s\"\n");
    let refused = person.fails(2, &["context", "export", "--docker", dir.to_str().unwrap()]);
    assert!(refused.contains("has no certificate"), "{refused}");
}

#[test]
fn contexts_file_is_updated_with_manager_addresses() {
    let (person, authority) = (CliUser::new(), authority());
    let (one, first) = person.manager.add_peer(&authority);
    let (two, _second) = person.manager.add_peer(&authority);
    // As it was written before there could be several.
    context(&person, &authority, &format!("address = \"{one}\""));
    person.ok(&["cluster", "info"]);
    assert_eq!(addresses(&person), format!("address = \"{one}\""), "it was told nothing");
    person.manager.set_advertised_managers(&[&one, &two]);
    person.ok(&["cluster", "info"]);
    assert_eq!(addresses(&person), format!("addresses = [\"{one}\", \"{two}\"]"));
    drop(first);
    person.manager.set_advertised_managers(&[&two, &one]);
    for _ in 0..2 {
        let info = person.ok(&["cluster", "info"]);
        assert!(info.contains(&format!("managerAddress: {two}")), "{info}");
        assert_eq!(
            addresses(&person),
            format!("addresses = [\"{two}\", \"{one}\"]"),
            "who answered comes first"
        );
    }
}

#[test]
fn several_managers_can_be_named_and_stale_answers_asked_for() {
    let (person, authority) = (CliUser::new(), authority());
    let ((gone, _held), (other, _other_held)) = (closed_port(), closed_port());
    let (one, _serving) = person.manager.add_peer(&authority);
    context(&person, &authority, &format!("addresses = [\"{gone}\"]"));
    let output = person.fails(5, &["cluster", "info"]);
    assert!(output.contains(&format!("cannot reach the manager at {gone}")), "{output}");
    let info = person.ok(&["--manager", &gone, "cluster", "info", "--manager", &one]);
    assert!(info.contains(&one), "{info}");
    let info = person.ok(&["cluster", "info", "--manager", &gone, "--manager", &one]);
    assert!(info.contains(&one) && person.manager.stale() == 0, "{info}");
    person.ok(&["cluster", "info", "--stale", "--manager", &one]);
    assert_eq!(person.manager.stale(), 1);
    let both = format!("{other}, {gone}");
    let text = person.fails(5, &["cluster", "info", "--manager", &both.replace(' ', "")]);
    assert!(text.contains(&both), "{text}");
}

#[test]
fn read_only_contexts_file_does_not_fail_the_command() {
    let (person, authority) = (CliUser::new(), authority());
    let before = fs::read_to_string(person.path("contexts.toml")).unwrap();
    person.manager.set_advertised_managers(&["10.0.0.7:8080"]);
    person.ok(&["cluster", "info"]);
    assert_eq!(fs::read_to_string(person.path("contexts.toml")).unwrap(), before);
    let (one, _serving) = person.manager.add_peer(&authority);
    context(&person, &authority, &format!("addresses = [\"{one}\"]"));
    let lock = fs::File::open(person.path(".")).unwrap();
    lock.lock().unwrap();
    person.ok(&["cluster", "info"]);
    assert_eq!(addresses(&person), format!("addresses = [\"{one}\"]"), "somebody else is writing");
}
