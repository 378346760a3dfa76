use std::time::SystemTime;

use warren_core::{Command, LEVEL};
use warren_types::{ClusterId, ContentKind, Id, ManagerId};
use zeroize::Zeroizing;

use super::*;

const AT: Timestamp = Timestamp(1_000);

pub(in crate::recovery) fn passphrase() -> Passphrase {
    Passphrase::parse(Zeroizing::new("correct horse".to_owned())).unwrap()
}

/// A cluster with a manager and a secret, and what its backup needs.
pub(in crate::recovery) struct Sample {
    pub authority: CertificateAuthority,
    pub content_key: ContentKey,
    pub state: State,
}

impl Sample {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let content_key = ContentKey::create(&dir.path().join("content.key")).unwrap();
        let cluster = ClusterId(Id(1));
        let authority = CertificateAuthority::create(&cluster.to_string(), SystemTime::now()).unwrap();
        let secret = ContentId(Id(9));
        let ranges = vec!["10.210.0.0/16".parse().unwrap()];
        let mut state = State::new();
        let commands = [
            Command::CreateCluster { id: cluster, ranges, level: LEVEL, at: AT },
            Command::RegisterMember {
                member: 1,
                id: ManagerId(Id(11)),
                name: "m1".parse().unwrap(),
                address: "10.0.0.1:8080".parse().unwrap(),
                level: LEVEL,
                at: AT,
            },
            Command::CreateContent {
                id: secret,
                kind: ContentKind::Secret,
                name: "db".parse().unwrap(),
                labels: Default::default(),
                content: content_key.seal(secret, b"hunter2"),
                at: AT,
            },
        ];
        for (command, index) in commands.iter().zip(1..) {
            let outcome = state.apply(1, index, command);
            assert!(matches!(outcome, warren_core::Outcome::Applied { .. }), "{outcome:?}");
        }
        Self { authority, content_key, state }
    }

    /// With the same secret as in `backup`, which is sealed anew each time.
    fn of(mut self, backup: &Backup) -> Self {
        let (known, found) = (self.state.export(), backup.state.export());
        let parts = warren_core::state::Parts { contents: found.contents, digest: found.digest, ..known };
        self.state = State::restore(parts).unwrap();
        self
    }

    pub fn written(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let writer = Some(writer());
        let state = (&self.state, AT);
        write(&passphrase(), &self.authority, &self.content_key, state, writer.as_ref(), &mut out).unwrap();
        out
    }
}

fn writer() -> Writer {
    Writer { name: "m1".parse().unwrap(), manager_only: true }
}

#[test]
fn everything_comes_back() {
    let sample = Sample::new();
    let backup = read(&passphrase(), sample.written()).unwrap();
    assert_eq!(backup.state, sample.state);
    assert_eq!(backup.state.digest(), sample.state.digest());
    assert_eq!(backup.authority.to_pem(), sample.authority.to_pem());
    assert_eq!(backup.content_key.name(), sample.content_key.name());
    assert_eq!((backup.created_at, backup.version.as_str()), (AT, env!("CARGO_PKG_VERSION")));
    assert_eq!(backup.writer, Some(writer()));
}

#[test]
fn nothing_can_be_read_without_the_passphrase() {
    let sample = Sample::new();
    let sealed = sample.written();
    let key = sample.authority.to_pem();
    let line = key.lines().nth(1).unwrap().as_bytes();
    assert!(!sealed.windows(line.len()).any(|window| window == line));
    let other = Passphrase::parse(Zeroizing::new("wrong horse".to_owned())).unwrap();
    let refused = read(&other, sealed).unwrap_err();
    assert!(matches!(refused, UnusableBackup::Sealed(BackupError::Passphrase)), "{refused}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let (sample, other) = (Sample::new(), Sample::new());
    let refused = |sample: &Sample| read(&passphrase(), sample.written()).unwrap_err();
    let stranger = CertificateAuthority::create("c2", SystemTime::now()).unwrap();
    let of_other = Sample { authority: stranger, ..Sample::new() };
    assert!(matches!(refused(&of_other), UnusableBackup::Content(CodecError::Field { .. })));
    let mixed = Sample { content_key: other.content_key, ..sample };
    assert!(matches!(refused(&mixed), UnusableBackup::Unreadable { .. }));
}

/// It was written by version 1 of the format: the header in the clear, and all that belongs to a cluster of level 2.
const GOLDEN: &[u8] = include_bytes!("golden/backup.1");

#[test]
fn what_an_earlier_version_wrote_can_be_restored() {
    assert!(GOLDEN.starts_with(b"WRNBACK\n\x01\0\0\0"), "{:?}", &GOLDEN[..16]);
    assert_eq!(GOLDEN[12..16], 600_000u32.to_le_bytes());
    let backup = read(&passphrase(), GOLDEN.to_vec()).unwrap();
    assert_eq!((backup.created_at, backup.version.as_str(), &backup.writer), (AT, "0.1.0", &None));
    assert_eq!(backup.state, Sample::new().of(&backup).state);
}
