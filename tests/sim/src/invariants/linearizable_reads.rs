//! A linearizable read sees every write that was acknowledged before the read was requested.

pub fn holds(acknowledged: u64, index: u64) -> Result<(), String> {
    if acknowledged <= index {
        return Ok(());
    }
    Err(format!(
        "reads see acknowledged writes: up to {index}, although {acknowledged} was acknowledged before"
    ))
}
