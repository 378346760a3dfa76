//! Generates the wire types and services from `warren/v1/*.proto` with the system's `protoc`.

fn main() -> std::io::Result<()> {
    let files =
        ["types", "api", "session", "store", "peers", "lock"].map(|name| format!("warren/v1/{name}.proto"));
    println!("cargo:rerun-if-changed=warren");
    // Sorted maps, so that equal values have equal bytes.
    let wire =
        tonic_prost_build::configure().btree_map(".").bytes(".").codec_path("crate::codec::CompactCodec");
    // Sent once in each session, and much larger than the other frames.
    let wire = wire.boxed(".warren.v1.WorkerFrame.frame.hello");
    // Their Debug output must not contain data; `convert::secret_object` implements it.
    let secret = [
        "CreateSecretObjectRequest",
        "UpdateSecretObjectRequest",
        "SecretObjectData",
        "RegistryLogin",
        "RepositoryToken",
        "JoinManagerRequest",
        "JoinManagerResponse",
        "BackupRequest",
        "UnlockKey",
        "UnlockRequest",
    ];
    let wire = wire.skip_debug(secret.map(|message| format!(".warren.v1.{message}")));
    wire.compile_protos(&files, &[".".to_string()])
}
