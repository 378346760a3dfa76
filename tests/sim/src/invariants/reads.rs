//! A read through raft sees everything that was acknowledged when it was asked for.

pub fn holds(acknowledged: u64, index: u64) -> Result<(), String> {
    if acknowledged <= index {
        return Ok(());
    }
    Err(format!(
        "reads see what was acknowledged: up to {index}, although {acknowledged} was acknowledged before"
    ))
}
