//! Kernel settings of a container.

/// Settings of the IPC namespace; also all of `fs.mqueue.`.
/// Source: namespaces(7) and ipc_namespaces(7).
const IPC_SYSCTLS: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shm_rmid_forced",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
];
/// Setting of the UTS namespace. The host name has its own field.
const UTS_SYSCTL: &str = "kernel.domainname";

/// Why a setting cannot be set for a container; `None` if it can.
pub fn sysctl_fault(key: &str, value: &str) -> Option<&'static str> {
    let plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    if !key.contains('.') || !key.split('.').all(plain) || value.is_empty() || value.contains(['\0', '\n']) {
        return Some("is not a sysctl; use a name like net.core.somaxconn and a one-line value");
    }
    let is_namespaced = key.starts_with("net.")
        || key.starts_with("fs.mqueue.")
        || key == UTS_SYSCTL
        || IPC_SYSCTLS.contains(&key);
    (!is_namespaced).then_some("applies to the whole machine, not to a container; set it on the node")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_of_the_containers_namespaces_are_accepted() {
        for key in
            ["net.core.somaxconn", "net.ipv4.conf.eth0.a-b", "kernel.sem", "fs.mqueue.x", "kernel.domainname"]
        {
            assert_eq!(sysctl_fault(key, "1"), None, "{key}");
        }
        for key in
            ["vm.swappiness", "kernel.hostname", "kernel.panic", "fs.file-max", "user.max_user_namespaces"]
        {
            assert!(sysctl_fault(key, "1").unwrap().starts_with("applies to the whole machine"), "{key}");
        }
        for (key, value) in
            [("net", "1"), ("net..x", "1"), ("../x", "1"), ("", "1"), ("net.x", ""), ("net.x", "1\n2")]
        {
            assert!(sysctl_fault(key, value).unwrap().starts_with("is not a sysctl"), "{key}={value}");
        }
    }
}
