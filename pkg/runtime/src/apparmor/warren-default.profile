# AppArmor profile of the containers of a Warren node that have no other one. The node loads it when it starts.
#
# What it allows is limited by the capabilities, the seccomp profile and the namespaces of a container. It denies what
# would change the node if a container got a writable view of /proc or /sys, which it gets read-only.

profile warren-default flags=(attach_disconnected, mediate_deleted) {
  capability,
  file,
  network,
  unix,

  # A mount shows files at another path, where the rules for paths below do not hold.
  deny mount,
  umount,

  # The node, its OCI runtime and other processes of a container send signals; a container sends them to itself.
  signal (receive) peer=unconfined,
  signal (receive) peer=runc,
  signal (receive) peer=crun,
  signal (send, receive) peer=warren-default,
  signal (send, receive) set=(exists),

  # Processes of a container trace each other. The node reads and traces all.
  ptrace (trace, read) peer=warren-default,
  ptrace (tracedby, readby),

  # In /proc: only directories of processes, which have a number, and below /proc/sys shared memory of the kernel's IPC.
  deny /proc/* w,
  deny /proc/{[^1-9s]*,s[^y]*,sy[^s]*,sys[^/]*}/** w,
  deny /proc/sys/{[^k]*,k[^e]*}{,/**} w,
  deny /proc/sys/kernel/{[^s]*,s[^h]*,sh[^m]*}{,/**} w,
  deny /proc/{kcore,kmem,mem,sysrq-trigger} rwklx,

  # In /sys: only cgroups.
  deny /sys/{[^f]*,f[^s]*}/** wklx,
  deny /sys/fs/{[^c]*,c[^g]*,cg[^r]*}/** wklx,
  deny /sys/{firmware,kernel/security,devices/virtual/powercap}/** rwklx,
}
