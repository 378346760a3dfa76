#compdef warren
# Completion of warren for zsh. Load it with: source <(warren completion zsh)
_warren() {
    local -a lines plain described
    local line
    lines=("${(@f)$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ ${lines[1]} == files ]]; then
        _files
        return
    fi
    for line in "${(@)lines[2,-1]}"; do
        if [[ $line == *= ]]; then
            plain+=("$line")
        else
            described+=("${${line%%$'\t'*}//:/\\:}:${${line#*$'\t'}#${line%%$'\t'*}}")
        fi
    done
    (( ${#plain} )) && compadd -S '' -a plain
    (( ${#described} )) && _describe warren described
}
if [[ ${funcstack[1]} == _warren ]]; then
    _warren "$@"
else
    compdef _warren warren
fi
