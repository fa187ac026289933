#!/bin/sh
# A custom reward in shell: 10 when the response says "please", else 0.
#     reward_type: "program:sh examples/rewards/polite.sh"
# It reads just enough JSON with shell patterns; a real one would use jq.
while read -r line; do
    id=${line#*\"id\":}
    id=${id%%,*}
    response=${line#*\"response\":\"}
    response=${response%%\",\"row\":*}
    case $response in
    *[Pp]lease*) echo "{\"id\": $id, \"reward\": 10, \"ans_acc\": 1, \"rule\": \"polite\"}" ;;
    *) echo "{\"id\": $id, \"reward\": 0, \"rule\": \"not polite\"}" ;;
    esac
done
