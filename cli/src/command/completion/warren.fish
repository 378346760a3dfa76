# Completion of warren for fish. Load it with: warren completion fish | source
function __warren_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l lines ($words[1] __complete -- $words[2..] 2>/dev/null)
    if test "$lines[1]" = files
        __fish_complete_path (commandline -ct)
        return
    end
    test (count $lines) -gt 1; and printf '%s\n' $lines[2..]
end
complete -c warren -f -a '(__warren_complete)'
