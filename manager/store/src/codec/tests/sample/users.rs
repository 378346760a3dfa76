//! Users: one that logged in, one that was removed, and the administrator of a manager's machine. The keys of the
//! cluster.

use warren_core::{CaCommand, Command, KeyCommand, KeyRotationStep};
use warren_types::{
    CaDigest, CaHolder, CaPhase, Id, KeyPhase, MemberId, NAMED_KEY_FORMAT, NextSecretObjectKey,
    PublicKeyHash, SealedData, SealedItem, SealedUnlockKey, SecretObjectId, SecretObjectKeyId, Timestamp,
    TokenHash, UnlockKeyId, UserId, UserRole,
};

/// The entry of the first login.
const LOGIN: u64 = 76;
/// The entry that begins the first replacement of the keys, and that of the second.
const KEYS: u64 = 94;
const KEYS_AGAIN: u64 = 105;
const AT: Timestamp = Timestamp(300);
const CA: CaDigest = CaDigest::from_bytes([9; 32]);

pub fn commands() -> Vec<(&'static str, Command)> {
    let create = |id: u8, name: &str, expires_at| Command::CreateUser {
        id: UserId(Id(id.into())),
        name: name.parse().unwrap(),
        role: UserRole::Operator,
        login_hash: TokenHash([20 + id; 32]),
        login_expires_at: Timestamp(400),
        expires_at,
        at: AT,
    };
    let login =
        |hash, key| Command::LoginUser { hash: TokenHash([hash; 32]), key: PublicKeyHash([key; 32]), at: AT };
    let advance = CaCommand::Advance { term: 1, digest: CA, phase: CaPhase::Nodes, at: AT };
    let mut all = vec![
        ("create_user", create(1, "ann", None)),
        ("create_user_with_end", create(2, "ci@example.org", Some(Timestamp(900)))),
        ("login_user", login(21, 5)),
        (
            "update_user",
            Command::UpdateUser {
                id: UserId(Id(1)),
                version: Some(LOGIN),
                role: Some(UserRole::Admin),
                login_hash: Some(TokenHash([30; 32])),
                login_expires_at: Some(Timestamp(500)),
                remove_keys: true,
                at: AT,
            },
        ),
        ("login_user_again", login(30, 6)),
        ("create_user_to_remove", create(3, "bob", None)),
        ("remove_user", Command::RemoveUser { id: UserId(Id(3)), at: AT }),
        (
            "set_administrator_key",
            Command::SetAdministratorKey { member: 3, key: PublicKeyHash([7; 32]), at: AT },
        ),
        ("set_node_key", Command::SetNodeKey { id: super::NODE, key: PublicKeyHash([8; 32]), at: AT }),
        (
            "begin_ca_rotation",
            Command::Ca(CaCommand::Begin {
                digest: CA,
                sealed: SealedData { size: 3, fingerprint: [9; 32], sealed: vec![1, 2, 3] },
                current: CaDigest::from_bytes([8; 32]),
                certificate: "first".to_owned(),
                at: AT,
            }),
        ),
        ("record_manager_renewal", renewal(CaHolder::Manager(1))),
        ("record_second_manager_renewal", renewal(CaHolder::Manager(2))),
        ("record_third_manager_renewal", renewal(CaHolder::Manager(3))),
        ("advance_ca_rotation", Command::Ca(advance)),
        ("record_node_renewal", renewal(CaHolder::Node(super::JOINED))),
        ("record_user_renewal", renewal(CaHolder::User(PublicKeyHash([7; 32])))),
        ("set_unlock_key", unlock_key(Some(8), None)),
        ("replace_unlock_key", unlock_key(Some(9), Some(8))),
        ("remove_unlock_key", unlock_key(None, None)),
        ("set_unlock_key_again", unlock_key(Some(10), None)),
    ];
    all.extend(key_rotation());
    // Of the administrator, who gets another one.
    let key = PublicKeyHash([7; 32]);
    all.push(("revoke_key", Command::Key(KeyCommand::Revoke { key, at: AT })));
    let key = PublicKeyHash([10; 32]);
    all.push(("set_administrator_key_again", Command::SetAdministratorKey { member: 3, key, at: AT }));
    all
}

fn key_rotation() -> Vec<(&'static str, Command)> {
    let rotate = |number, step| Command::Key(KeyCommand::Rotate { number, step, at: AT });
    let record = |number, phase, member: MemberId| rotate(number, KeyRotationStep::Record { phase, member });
    let offer = |number, id, by| {
        rotate(
            number,
            KeyRotationStep::Offer(NextSecretObjectKey { id: SecretObjectKeyId(id), sealed: sealed(64, by) }),
        )
    };
    let version =
        |id, number| (SealedItem::SecretObject { id: SecretObjectId(Id(id)), number }, sealed(3, 10));
    let items = vec![
        version(20, 1),
        version(20, 2),
        version(21, 1),
        version(22, 1),
        (SealedItem::Authority, sealed(3, 10)),
        (SealedItem::UnlockKey, sealed(2, 10)),
    ];
    let (disks, managers) = (KeyPhase::Disks, KeyPhase::Managers);
    vec![
        ("begin_key_rotation", rotate(0, KeyRotationStep::Begin)),
        ("record_disk", record(KEYS, disks, 1)),
        ("record_second_disk", record(KEYS, disks, 2)),
        ("record_third_disk", record(KEYS, disks, 3)),
        ("offer_key", offer(KEYS, 10, 9)),
        ("record_manager_key", record(KEYS, managers, 1)),
        ("record_second_manager_key", record(KEYS, managers, 2)),
        ("record_third_manager_key", record(KEYS, managers, 3)),
        ("advance_key_rotation", rotate(KEYS, KeyRotationStep::Advance(KeyPhase::Objects))),
        ("reseal_data", Command::Key(KeyCommand::Reseal { number: KEYS, items, at: AT })),
        ("complete_key_rotation", rotate(KEYS, KeyRotationStep::Advance(KeyPhase::Complete))),
        ("begin_key_rotation_again", rotate(KEYS, KeyRotationStep::Begin)),
        ("record_disk_again", record(KEYS_AGAIN, disks, 1)),
        ("record_second_disk_again", record(KEYS_AGAIN, disks, 2)),
        ("record_third_disk_again", record(KEYS_AGAIN, disks, 3)),
        ("offer_key_again", offer(KEYS_AGAIN, 11, 10)),
        ("record_manager_key_again", record(KEYS_AGAIN, managers, 1)),
    ]
}

fn sealed(size: u32, by: u64) -> SealedData {
    let sealed = [&[NAMED_KEY_FORMAT][..], &by.to_be_bytes(), &[7]].concat();
    SealedData { size, fingerprint: [6; 32], sealed }
}

fn unlock_key(key: Option<u8>, replaces: Option<u64>) -> Command {
    let key = key.map(|number| SealedUnlockKey {
        id: UnlockKeyId(number.into()),
        sealed: SealedData { size: 2, fingerprint: [number; 32], sealed: vec![4, 5] },
    });
    Command::Key(KeyCommand::SetUnlockKey { key, replaces: replaces.map(UnlockKeyId), at: AT })
}

fn renewal(holder: CaHolder) -> Command {
    Command::Ca(CaCommand::RecordRenewal { digest: CA, holder, at: AT })
}
