//! Generates the wire types and services from `warren/v1/*.proto` with the system's `protoc`.

fn main() -> std::io::Result<()> {
    let files = ["types", "api", "session", "store", "peers"].map(|name| format!("warren/v1/{name}.proto"));
    println!("cargo:rerun-if-changed=warren");
    // Maps in order, so that equal values have equal bytes.
    let wire = tonic_prost_build::configure().btree_map(".").bytes(".").codec_path("crate::codec::Frugal");
    // What they carry is shown by nothing; `convert::content` says what is.
    let secret = [
        "CreateContentRequest",
        "UpdateContentRequest",
        "ContentBytes",
        "JoinManagerRequest",
        "JoinManagerResponse",
        "BackupRequest",
    ];
    let wire = wire.skip_debug(secret.map(|message| format!(".warren.v1.{message}")));
    wire.compile_protos(&files, &[".".to_string()])
}
