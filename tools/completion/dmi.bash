#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Completion of dmi-analyze, dmi-ctl, dmi-dump, dmi-replay, dmi-run, dmi-sites, dmi-top, dmi-trace and dmi-view in bash. Commands, options, formats and sinks are those that a tool's own --help
# names, so that nothing here can be out of date. The package bash-completion loads it where it is installed; without it: source FILE.

# _dmi_facts TOOL: of its --help, a line each: "command NAME", "option NAME COMMAND TAKES" (COMMAND: - for any; TAKES: value or -),
# "format NAME", "sink NAME"
_dmi_facts() {
    "$1" --help </dev/null 2>/dev/null | awk -v tool="${1##*/}" '
        function owners(text,   words, n, i, word, some) {
            # "list, show: ..." and "export -f npz: ..." name the commands that take an option; a later "; diff: ..." names more
            n = split(text, words, " ")
            for (i = 1; i <= n; i++) {
                word = words[i]
                sub(/[,:]$/, "", word)
                if (!(word in commands) || (words[i] == word && words[i + 1] !~ /^-/))
                    continue
                if (i == 1 || some) {
                    owned[word] = some = 1
                }
            }
            return some
        }
        function finish(   i, word) {
            if (!names)
                return
            split("", owned)
            n = split(names, list, " ")
            if (section != "")
                owned[section] = 1
            else if (!owners(text))
                owned["-"] = 1
            for (i = 1; i <= n; i++)
                for (word in owned)
                    print "option", list[i], word, takes
            names = ""
        }
        # --words of a line that shows how a command is called
        function usage(command,   i, word) {
            for (i = 1; i <= NF; i++) {
                word = $i
                gsub(/[][.]|,$/, "", word)
                if (word ~ /^--?[A-Za-z]/)
                    print "option", word, command, ($(i + 1) ~ /^[A-Z]/ ? "value" : "-")
            }
        }
        { line = $0; sub(/^Usage: */, ""); sub(/^ */, "") }
        $1 == tool {
            finish()
            command = $2 ~ /^[a-z]+$/ ? $2 : "-"
            if (command != "-" && !(command in commands))
                print "command", command
            if (command != "-")
                commands[command] = 1
            usage(command)
            next
        }
        line ~ /^  -/ && block == "" {
            finish()
            takes = "-"
            head = substr(line, 1, 21)
            if (split(head, words, " ") == 0)
                next
            for (i = 1; i in words && (words[i] ~ /^-/ || words[i] ~ /^[A-Z|0-9]/); i++) {
                word = words[i]
                sub(/,$/, "", word)
                if (word ~ /^-/)
                    names = names (names ? " " : "") word
                else
                    takes = "value"
            }
            text = substr(line, 22)
            next
        }
        line ~ /^               / && names { text = text " " $0; next }
        { finish() }
        line ~ /^Formats/ { block = "format"; next }
        line ~ /^Sinks/ { block = "sink"; next }
        line == "" { block = ""; next }
        block != "" && line ~ /^  / { print block, $1; next }
        line ~ /^[a-z]/ { section = ($1 in commands) ? $1 : section }
        END { finish(); print "option --help - -"; print "option --version - -" }
    '
}

# _dmi_values OPTION: the words that it may have; nothing: a file, or what nobody can foresee
_dmi_values() {
    case $1 in
    --format | -f) awk '$1 == "format" { print $2 }' ;;
    --to) awk '$1 == "sink" { sub(/[A-Z].*/, "", $2); print $2 }' ;;
    --tokens) printf '%s\n' all prompt response last ;;
    --layers | --layer) printf '%s\n' last middle ;;
    --names) [ "$_dmi_command" != export ] || printf '%s\n' keys transformerlens ;;
    --preset) printf '%s\n' residuals attention mlp logits eagle3 all ;;
    --attach) printf '%s\n' residuals attention mlp logits eagle3 all residuals,gradients ;;
    --log) printf '%s\n' stderr none ;;
    --by) printf '%s\n' layer token channel ;;
    --speed) printf '%s\n' max 1 ;;
    esac
}

# _dmi_place: what comes before the word that is completed: _dmi_command, and _dmi_after, the number of words after a "--"
_dmi_place() {
    local i word
    _dmi_command=''
    _dmi_after=-1
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((_dmi_after >= 0)); then
            _dmi_after=$((_dmi_after + 1))
        elif [ "$word" = -- ]; then
            _dmi_after=0
        elif [ -z "$_dmi_command" ] && grep -qxF -- "command $word" <<<"$_dmi_known"; then
            _dmi_command=$word
        fi
    done
}

# Of lines on stdin those that begin with $1, to COMPREPLY.
_dmi_reply() {
    local line
    while IFS= read -r line; do
        [[ $line != "$1"* ]] || COMPREPLY+=("$line")
    done < <(sort -u)
}

_dmi_complete() {
    local current=$2 previous=$3 _dmi_command _dmi_after _dmi_known
    COMPREPLY=()
    _dmi_known=$(_dmi_facts "${1/#\~/$HOME}")
    _dmi_place
    if ((_dmi_after == 0)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$current")
    elif ((_dmi_after > 0)); then
        return # the arguments of somebody else
    elif [[ $previous == -* ]] && grep -q "^option $previous [^ ]* value\$" <<<"$_dmi_known"; then
        _dmi_reply "$current" < <(_dmi_values "$previous" <<<"$_dmi_known")
    elif [[ $current == -* ]]; then
        _dmi_reply "$current" < <(awk -v c="${_dmi_command:--}" '$1 == "option" && (c == "-" || $3 == c || $3 == "-") { print $2 }' <<<"$_dmi_known")
    elif [ -z "$_dmi_command" ]; then
        _dmi_reply "$current" < <(awk '$1 == "command" { print $2 }' <<<"$_dmi_known")
    fi
}

# Where nothing fits: files.
complete -o bashdefault -o default -F _dmi_complete dmi-analyze dmi-ctl dmi-dump dmi-replay dmi-run dmi-sites dmi-top dmi-trace dmi-view
