//! Generates the wire types and services from `warren/v1/*.proto` with the system's `protoc`.

fn main() -> std::io::Result<()> {
    let files = ["types", "api", "session", "store"].map(|name| format!("warren/v1/{name}.proto"));
    println!("cargo:rerun-if-changed=warren");
    // Maps in order, so that equal values have equal bytes.
    tonic_prost_build::configure().btree_map(".").bytes(".").compile_protos(&files, &[".".to_string()])
}
