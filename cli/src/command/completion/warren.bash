# Completion of warren for bash. Load it with: source <(warren completion bash)
_warren() {
    local words=() word joined='' kind line candidates=()
    # bash splits words at = and :, which are parts of flags, addresses and references.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ ${#words[@]} -gt 0 && ( $word == [=:] || -n $joined && -n $word ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        joined=
        [[ $word == [=:] ]] && joined=yes
    done
    COMPREPLY=()
    mapfile -t candidates < <("${COMP_WORDS[0]}" __complete -- "${words[@]}" 2>/dev/null)
    kind=${candidates[0]-}
    if [[ $kind == files ]]; then
        compopt -o default 2>/dev/null
        return
    fi
    # Only the part behind the last separator is replaced.
    local current=${words[-1]-} before
    before=${current%"${current##*[=:]}"}
    for line in "${candidates[@]:1}"; do
        line=${line%%$'\t'*}
        [[ $line == *= ]] && compopt -o nospace 2>/dev/null
        COMPREPLY+=("${line#"$before"}")
    done
}
complete -F _warren warren
