use std::time::SystemTime;

use warren_core::{Command, FEATURE_LEVEL};
use warren_types::{ClusterId, Id, ManagerId, SecretObjectKind};
use zeroize::Zeroizing;

use super::*;

const AT: Timestamp = Timestamp(1_000);

pub(crate) fn passphrase() -> Passphrase {
    Passphrase::parse(Zeroizing::new("correct horse".to_owned())).unwrap()
}

/// A cluster with a manager and a secret, and the inputs of its backup.
pub(crate) struct BackupFixture {
    pub authority: CertificateAuthority,
    pub secret_object_key: SecretObjectKey,
    pub state: State,
}

impl BackupFixture {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let secret_object_key = SecretObjectKey::create(&dir.path().join("secret-objects.key")).unwrap();
        let cluster = ClusterId(Id(1));
        let authority = CertificateAuthority::create(&cluster.to_string(), SystemTime::now()).unwrap();
        let secret = SecretObjectId(Id(9));
        let ranges = vec!["10.210.0.0/16".parse().unwrap()];
        let mut state = State::new();
        let commands = [
            Command::CreateCluster { id: cluster, ranges, feature_level: FEATURE_LEVEL, at: AT },
            Command::RegisterMember {
                member: 1,
                id: ManagerId(Id(11)),
                name: "m1".parse().unwrap(),
                address: "10.0.0.1:8080".parse().unwrap(),
                level: FEATURE_LEVEL,
                at: AT,
            },
            Command::CreateSecretObject {
                id: secret,
                kind: SecretObjectKind::Secret,
                name: "db".parse().unwrap(),
                labels: Default::default(),
                data: secret_object_key.seal(secret, b"hunter2"),
                at: AT,
            },
        ];
        for (command, index) in commands.iter().zip(1..) {
            let outcome = state.apply(1, index, command);
            assert!(matches!(outcome, warren_core::ApplyOutcome::Applied { .. }), "{outcome:?}");
        }
        Self { authority, secret_object_key, state }
    }

    /// The same secret as in `backup`, which is sealed with a new nonce each time.
    fn of(mut self, backup: &Backup) -> Self {
        let (known, found) = (self.state.export(), backup.state.export());
        let parts = warren_core::state::StateParts {
            secret_objects: found.secret_objects,
            // Of a backup without networks, its index is that of the backup.
            networks: found.networks,
            digest: found.digest,
            ..known
        };
        self.state = State::restore(parts).unwrap();
        self
    }

    pub fn encrypted(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let writer = Some(writer());
        let state = (&self.state, AT);
        write(&passphrase(), &self.authority, &self.secret_object_key, state, writer.as_ref(), &mut out)
            .unwrap();
        out
    }
}

fn writer() -> BackupAuthor {
    BackupAuthor { name: "m1".parse().unwrap(), is_manager_only: true }
}

#[test]
fn backup_round_trips() {
    let sample = BackupFixture::new();
    let backup = read(&passphrase(), sample.encrypted()).unwrap();
    assert_eq!(backup.state, sample.state);
    assert_eq!(backup.state.digest(), sample.state.digest());
    assert_eq!(backup.authority.to_pem(), sample.authority.to_pem());
    assert_eq!(backup.secret_object_key.key_fingerprint(), sample.secret_object_key.key_fingerprint());
    assert_eq!((backup.created_at, backup.version.as_str()), (AT, env!("CARGO_PKG_VERSION")));
    assert_eq!(backup.author, Some(writer()));
}

#[test]
fn backup_has_both_secret_object_keys_while_one_is_replaced() {
    let sample = BackupFixture::new();
    let both = SecretObjectKey::generate().with(&sample.secret_object_key);
    let sample = BackupFixture { secret_object_key: both, ..sample };
    let backup = read(&passphrase(), sample.encrypted()).unwrap();
    assert_eq!(backup.secret_object_key.key_fingerprints(), sample.secret_object_key.key_fingerprints());
    assert_eq!(backup.secret_object_key.key_fingerprints().len(), 2);
}

#[test]
fn wrong_passphrase_reads_nothing() {
    let sample = BackupFixture::new();
    let sealed = sample.encrypted();
    let key = sample.authority.to_pem();
    let line = key.lines().nth(1).unwrap().as_bytes();
    assert!(!sealed.windows(line.len()).any(|window| window == line));
    let other = Passphrase::parse(Zeroizing::new("wrong horse".to_owned())).unwrap();
    let refused = read(&other, sealed).unwrap_err();
    assert!(matches!(refused, ReadBackupError::Decrypt(BackupError::Passphrase)), "{refused}");
}

#[test]
fn inconsistent_backup_is_refused() {
    let (sample, other) = (BackupFixture::new(), BackupFixture::new());
    let refused = |sample: &BackupFixture| read(&passphrase(), sample.encrypted()).unwrap_err();
    let foreign = CertificateAuthority::create("c2", SystemTime::now()).unwrap();
    let of_other = BackupFixture { authority: foreign, ..BackupFixture::new() };
    assert!(matches!(refused(&of_other), ReadBackupError::Decode(CodecError::InvalidField { .. })));
    let mixed = BackupFixture { secret_object_key: other.secret_object_key, ..sample };
    assert!(matches!(refused(&mixed), ReadBackupError::SecretObjectKeyMismatch { .. }));
}

/// Written by version 1 of the format: the plain header, and a cluster of level 2.
const GOLDEN: &[u8] = include_bytes!("golden/backup.1");

#[test]
fn version_1_backup_is_readable() {
    assert!(GOLDEN.starts_with(b"WRNBACK\n\x01\0\0\0"), "{:?}", &GOLDEN[..16]);
    assert_eq!(GOLDEN[12..16], 600_000u32.to_le_bytes());
    let backup = read(&passphrase(), GOLDEN.to_vec()).unwrap();
    assert_eq!((backup.created_at, backup.version.as_str(), &backup.author), (AT, "0.1.0", &None));
    assert_eq!(backup.state, BackupFixture::new().of(&backup).state);
}
