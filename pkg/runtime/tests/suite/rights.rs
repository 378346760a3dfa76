//! Privileges of containers beyond, or below, the defaults.

use std::path::PathBuf;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use warren_runtime::containerd::AllowedArchitectures;
use warren_runtime::{ContainerSpec, DevicePermissions, HostDevice, Runtime, SeccompPolicy};

use crate::world::{RuntimeFixture, import, spec, stopped, tiny};

/// The kernel's major number of small drivers; those that the tests use are no default.
const MISC_MAJOR: u64 = 10;

fn device(source: PathBuf, target: &str, access: DevicePermissions) -> HostDevice {
    HostDevice { source, target: target.into(), access }
}

const READ: DevicePermissions = DevicePermissions { read: true, write: false, mknod: false };

/// A shell function that tests whether the kernel allows a device to be opened, whether the device exists or
/// not.
const TRY_OPEN_SCRIPT: &str =
    "try() { (eval \"true $1\") 2>&1 | grep -q 'not permitted' && echo \"$1 no\" || echo \"$1 yes\"; }; ";

#[tokio::test(flavor = "multi_thread")]
async fn capabilities_devices_and_seccomp_match_spec() {
    let world = RuntimeFixture::start().await;
    let make = |name: &str, minor| {
        let path = world.containerd.dir().join(name);
        mknod(&path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(MISC_MAJOR, minor)).unwrap();
        path
    };
    let (full, read) = (make("full", 183), make("read", 184));
    let script = "grep -e CapEff -e CapBnd -e Seccomp: /proc/self/status; unshare -m true && echo unshared; \
                  chown 5 /bin || echo unowned; mknod /own c 10 185; mknod /again c 10 184; \
                  for to in '</dev/full' '>/dev/full' '</dev/read' '>/dev/read' '>/again' '</own'; do try $to; done";
    let change = |spec: &mut ContainerSpec| {
        spec.cap_add = vec!["SYS_ADMIN".into(), "cap_net_admin".into()];
        spec.cap_drop = vec!["CAP_CHOWN".into()];
        spec.devices =
            vec![device(full, "/dev/full", DevicePermissions::FULL), device(read, "/dev/read", READ)];
    };
    let printed = world.output(change, &format!("{TRY_OPEN_SCRIPT}{script}")).await;
    let mask = 0xa804_25fb_u64 & !1 | 1 << 21 | 1 << 12;
    let output: Vec<&str> = printed.lines().filter(|line| !line.starts_with("chown: ")).collect();
    let want = [
        &format!("CapEff:\t{mask:016x}"),
        &format!("CapBnd:\t{mask:016x}"),
        "Seccomp:\t2",
        "unshared",
        "unowned",
        "</dev/full yes",
        ">/dev/full yes",
        "</dev/read yes",
        ">/dev/read no",
        // Another node for the same device has the same rule.
        ">/again no",
        // This one was not requested.
        "</own no",
    ];
    assert_eq!(output, want, "{printed}");

    let change = |spec: &mut ContainerSpec| {
        (spec.seccomp, spec.cap_drop) = (SeccompPolicy::Unconfined, vec!["ALL".into()]);
    };
    let printed = world.output(change, "grep -e CapEff -e Seccomp: /proc/self/status").await;
    assert_eq!(printed, "CapEff:\t0000000000000000\nSeccomp:\t0\n");
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn privileged_container_has_no_restrictions() {
    let world = RuntimeFixture::start().await;
    let script = "grep -e CapEff -e Seccomp: /proc/self/status; [ -c /dev/kmsg ] && echo kmsg; \
                  mknod /own c 10 185; try '</own'; \
                  mkdir /m && mount -t tmpfs x /m && echo mounted; grep -c ' /proc/' /proc/mounts; \
                  grep -c -e ' /sys sysfs ro' -e ' /sys/fs/cgroup[^ ]* cgroup ro' /proc/mounts; \
                  mkdir /sys/fs/cgroup/*/child 2>/dev/null || mkdir /sys/fs/cgroup/child; echo child";
    let printed = world.output(|spec| spec.privileged = true, &format!("{TRY_OPEN_SCRIPT}{script}")).await;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ours = status.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).unwrap();
    let want = format!("CapEff:\t{ours}\nSeccomp:\t0\nkmsg\n</own yes\nmounted\n0\n0\nchild\n");
    assert_eq!(printed, want);
    world.assert_clean().await;
}

/// A program of 32 bits that ends with code 42: an ELF header, a program header, and
/// `mov eax, 1; mov ebx, 42; int 0x80`.
fn elf32_program() -> Vec<u8> {
    const BASE: u32 = 0x0804_8000;
    let code = b"\xb8\x01\x00\x00\x00\xbb\x2a\x00\x00\x00\xcd\x80";
    let size = 84 + u32::try_from(code.len()).unwrap();
    let mut elf = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0\x01\0\0\0".to_vec();
    for word in [BASE + 84, 52, 0, 0] {
        elf.extend(word.to_le_bytes());
    }
    for half in [52u16, 32, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1, 0, BASE, BASE, size, size, 5, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(code);
    elf
}

#[cfg(target_arch = "x86_64")]
#[tokio::test(flavor = "multi_thread")]
async fn compat_programs_run_only_when_allowed() {
    for architectures in [AllowedArchitectures::Native, AllowedArchitectures::Compatible] {
        let world = RuntimeFixture::start_with(|settings, _| settings.architectures = architectures).await;
        let program = world.containerd.dir().join("small");
        warren_testkit::scratch::install(&program, &elf32_program());
        let here = std::process::Command::new(program).status().ok().and_then(|status| status.code());
        let code = match (architectures, here) {
            // A kernel without 32-bit support cannot start it.
            (_, None) => 126,
            // 128 + 31: killed by SIGSYS.
            (AllowedArchitectures::Native, Some(_)) => 159,
            (AllowedArchitectures::Compatible, Some(_)) => 42,
        };
        let image = tiny("small:1").file("bin/small", 0o755, elf32_program());
        import(&world.runtime, world.containerd.dir(), image.oci_archive().unwrap()).await.unwrap();
        let container = ContainerSpec {
            image: warren_runtime::Reference::parse("small:1").unwrap(),
            ..spec("small", &["sh", "-c", "/bin/small"])
        };
        world.runtime.ensure_created(&container).await.unwrap();
        world.runtime.start(&container.id).await.unwrap();
        assert_eq!(stopped(&world.runtime, &container.id).await.code, code, "{architectures:?}");
        world.runtime.remove(&container.id).await.unwrap();
        world.assert_clean().await;
    }
}
